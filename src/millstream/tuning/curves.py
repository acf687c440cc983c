"""Measured costs as functions: seconds over a size, and steps with a fixed part."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ALIKE = 0.05  # weight of neighbouring sizes being alike, where a sample has 1
FITS = 3  # the first relative to what was seen, which favours runs that were fast by chance; then to what was fitted


@dataclass(frozen=True)
class Curve:
    """Seconds over the logarithm of a size, measured at some sizes, on straight lines between them.

    If `grows` the lines are between logarithms of seconds too, and beyond the largest size the seconds grow in
    proportion; otherwise they stay, as below the smallest: a structure that leaves a cache of the processor costs more
    at once.
    """

    sizes: tuple[float, ...]
    seconds: tuple[float, ...]
    grows: bool = False

    def __call__(self, size: float) -> float:
        largest = self.sizes[-1]
        if self.grows and size > largest:
            return self.seconds[-1] * size / largest
        at, sizes = np.log(max(size, 1e-9)), np.log(self.sizes)
        if not self.grows:
            return float(np.interp(at, sizes, self.seconds))
        return float(np.exp(np.interp(at, sizes, np.log(np.maximum(self.seconds, 1e-12)))))

    @classmethod
    def of(cls, points: dict[float, float], *, grows: bool = False) -> Curve:
        sizes = sorted(points)
        return cls(tuple(map(float, sizes)), tuple(max(1e-12, float(points[size])) for size in sizes), grows)

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Curve:
        return cls(tuple(body["sizes"]), tuple(body["seconds"]), bool(body["grows"]))


@dataclass(frozen=True)
class Step:
    """A step of an algorithm: `fixed` seconds each time, and `each(size)` for a tuple, by the size of its structure."""

    fixed: float
    each: Curve

    def __call__(self, tuples: float, size: float) -> float:
        return self.fixed + tuples * self.each(size)

    def towards(self, other: Step, share: float) -> Step:
        """The step that lies between this one and another, at this share of the way."""
        seconds = tuple((1 - share) * self.each(size) + share * other.each(size) for size in self.each.sizes)
        fixed = (1 - share) * self.fixed + share * other.fixed
        return Step(fixed, Curve(self.each.sizes, seconds, self.each.grows))

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Step:
        return cls(float(body["fixed"]), Curve.from_json(body["each"]))


@dataclass(frozen=True)
class Sample:
    """What one run shows of a step: calls, tuples and seconds, and the size of the structure that it worked on."""

    size: float
    calls: int
    tuples: float
    seconds: float


def fit(samples: Sequence[Sample]) -> Step:
    """The step that comes closest to all samples, relative to each: one fixed part, a cost of a tuple for each size.

    A tuple costs no less in a larger structure: what small ones, which work on few tuples at a time, seem to cost more
    is part of what is fixed. Runs with few tuples in a call say little of a tuple's cost: neighbouring sizes are then
    taken to cost the same.
    """
    samples = [one for one in samples if one.calls and one.seconds > 0]
    if not samples:
        return Step(0.0, Curve((1.0,), (1e-12,)))
    sizes = sorted({one.size for one in samples})
    seen = np.array([one.seconds / one.calls for one in samples])
    parts = np.zeros((len(samples), 1 + len(sizes)))  # the fixed part, then what each size adds
    parts[:, 0] = 1
    for row, one in enumerate(samples):
        parts[row, 1 : 2 + sizes.index(one.size)] = one.tuples / one.calls
    fitted = seen
    for _ in range(FITS):
        relative = parts / fitted[:, None]
        most = relative[:, 1:].max()  # 1 / the cost of a tuple, if tuples are all that costs
        alike = np.eye(len(sizes), 1 + len(sizes), 1)[1:] * ALIKE * most
        found = _not_negative(np.vstack([relative, alike]), np.append(seen / fitted, np.zeros(len(alike))))
        fitted = np.maximum(parts @ found, 0.1 * seen)
    return Step(float(found[0]), Curve.of(dict(zip(sizes, np.cumsum(found[1:]).tolist(), strict=True))))


def _not_negative(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Least squares without negative results, for a few unknowns: some are zero, and all choices of them are tried."""
    unknowns = matrix.shape[1]
    best, least = np.zeros(unknowns), float(target @ target)
    for choice in itertools.product((False, True), repeat=unknowns):
        free = np.array(choice)
        scale = np.maximum(np.abs(matrix[:, free]).max(axis=0, initial=0.0), 1e-300)
        some = np.linalg.lstsq(matrix[:, free] / scale, target, rcond=None)[0] / scale
        error = float(np.square(matrix[:, free] @ some - target).sum())
        if (some >= 0).all() and error < least:
            best, least = np.zeros(unknowns), error
            best[free] = some
    return best
