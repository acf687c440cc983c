"""The cost factors of one master on one machine, and the file that keeps them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ForeignCalibration, InputError
from ..master import Master
from .curves import Curve, Step

FORMAT = 4
SKEWED = ", Zipf 1"  # behind the name of a step that was also measured with such a stream


@dataclass(frozen=True)
class Factors:
    """What was measured. Letters are those of `docs/cost-models.md`.

    - io: c_I/O(b), loading a partition of b bytes from anywhere in R; scan: the next b bytes of a scan, read ahead
    - handing_over: of a read that is there, over the seconds since the last one
    - spread: how many times as much a result costs whose rows lie in reads of b bytes, not all in the processor's cache
    - steps: what the steps of the operators cost, by name
    - fill: rows that wait in H_S, as a share of its capacity
    - row_bytes, columns: the stream tuple and the columns of R that were measured with
    """

    master: str
    machine: str
    io: Curve
    scan: Curve
    handing_over: Curve
    spread: Curve
    steps: dict[str, Step]
    fill: float
    row_bytes: int
    columns: tuple[str, ...] | None
    created: str = ""
    path: str = ""
    direct: bool = False
    format: int = field(default=FORMAT)

    def check(self, master: Master) -> None:
        """Refuse factors that were measured on another master, version or machine."""
        again = "run millstream.tuning.calibrate(master) again"
        if self.machine != machine():
            raise ForeignCalibration(
                f"the calibration was made on another machine ({self.machine.partition('/')[0]}, this is "
                f"{machine().partition('/')[0]}): its factors say nothing about this one; {again}"
            )
        if self.master != identity(master):
            raise ForeignCalibration(
                f"the calibration is of another master ({self.path or 'unknown'}), not of version {master.version} of "
                f"{master.path}{' read with O_DIRECT' if master.direct else ''}; {again}"
            )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str, where: str = "the calibration") -> Factors:
        again = "run millstream.tuning.calibrate(master) again"
        try:
            body: dict[str, Any] = json.loads(text)
            if body["format"] != FORMAT:
                raise ForeignCalibration(f"{where} has format {body['format']}, not {FORMAT}; {again}")
            for curve in ("io", "scan", "handing_over", "spread"):
                body[curve] = Curve.from_json(body[curve])
            body["steps"] = {name: Step.from_json(step) for name, step in body["steps"].items()}
            body["columns"] = None if body["columns"] is None else tuple(body["columns"])
            return cls(**body)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, ForeignCalibration):
                raise
            raise ForeignCalibration(f"{where} is not a calibration that can be read ({error}); {again}") from error


def machine() -> str:
    """This machine: name and a hash of what makes it fast or slow."""
    model = platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    known = f"{platform.node()} {model} {os.cpu_count()}"
    return f"{platform.node()}/{hashlib.sha256(known.encode()).hexdigest()[:16]}"


def identity(master: Master) -> str:
    """This version of this master, read this way: where it lies does not matter."""
    if not isinstance(master, Master):
        raise InputError(
            f"only a master can be calibrated, and {getattr(master, 'path', master)} is none; "
            "build one with millstream.build_master"
        )
    statistics = asdict(master.statistics)
    files = [(part.file, part.bytes, part.index_checksum) for part in master.manifest.parts]
    known = json.dumps([master.version, list(master.key), statistics, files, master.direct], sort_keys=True)
    return hashlib.sha256(known.encode()).hexdigest()[:16]


def place(master: Master) -> Path:
    """The file that keeps the factors of a master: in the user's cache, by master and machine."""
    cache = Path(os.environ.get("MILLSTREAM_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "millstream" / f"calibration-{identity(master)}-{machine().partition('/')[2]}.json"


def save(factors: Factors, file: str | Path) -> Path:
    """Write factors to a file, all or nothing."""
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}")
    try:
        with os.fdopen(handle, "w") as out:
            out.write(factors.to_json())
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise
    return file


def load(master: Master, file: str | Path | None = None) -> Factors:
    """Factors of this master on this machine from a file, by default the one that `calibrate` wrote."""
    where = Path(file) if file is not None else place(master)
    try:
        text = where.read_text()
    except FileNotFoundError:
        raise InputError(f"there is no calibration at {where}; run millstream.tuning.calibrate(master) first") from None
    factors = Factors.from_json(text, str(where))
    factors.check(master)
    return factors


def stored(master: Master) -> Factors | None:
    """Factors of this master on this machine if there are any that fit."""
    try:
        return load(master)
    except (InputError, ForeignCalibration, OSError):
        return None
