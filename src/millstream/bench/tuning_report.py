"""What `bench tuning` has to say: targets, tables and the text around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import mean

from ..units import format_bytes
from .report import Check, Section, Table
from .tuning import ALGORITHMS, BUDGET, LESS, REFERENCE, ROUNDS, SUSTAINED
from .tuning_results import Point, Results, points_of

ERROR, LOSS = 0.15, 0.03  # of predictions, and of the default disk buffer


def checks(results: Results, *, full: bool) -> list[Check]:
    """The targets. A quick run measures too shortly to judge."""
    found = []
    for name in ALGORITHMS:
        error = mean(one.error for one in results.of(name))
        what = f"{name}: predicted against measured rate, mean error over the disk buffer"
        found.append(Check(what, f"{error:.1%}", f"<= {ERROR:.0%}", error <= ERROR if full else None))
    for pair in results.defaults:
        what = f"{pair.default.algorithm}, {format_bytes(pair.default.memory)}: default disk buffer against the optimum"
        found.append(Check(what, f"{-pair.loss:+.1%}", f"within {LOSS:.0%}", pair.loss <= LOSS if full else None))
    for one in results.rated:
        what = f"{one.algorithm}: memory planned for {one.asked:,.0f} tuples/s, {format_bytes(int(one.memory))}"
        passed = one.share >= SUSTAINED and one.share_with_less < SUSTAINED if full else None
        target = f">= {SUSTAINED:.0%} with it, < {SUSTAINED:.0%} with {LESS:.0%} of it"
        found.append(Check(what, f"{one.share:.0%}; {one.share_with_less:.0%} with {LESS:.0%} of it", target, passed))
    return found


def _from_disk(results: Results) -> str:
    """What to know about rates with O_DIRECT, which follow the disk and are not judged."""
    points, rates = results.from_disk, results.disk_rates
    errors = (
        f"{name} {mean(one.error for one in points_of(name, points)):.0%}"
        for name in ALGORITHMS
        if points_of(name, points)
    )
    disk = f"{min(rates) / 1e9:.1f} to {max(rates) / 1e9:.1f} GB/s" if rates else "nothing"
    return f"Mean errors: {', '.join(errors)}. Plain sequential reads in between got {disk}: no model knows beforehand."


def _rates(points: Sequence[Point], title: str, note: str = "") -> Table:
    """Predicted and measured rates over the disk buffer."""
    buffers = sorted({one.disk_buffer for one in points})
    rows = []
    for name in ALGORITHMS:
        known = {one.disk_buffer: one for one in points_of(name, points)}
        rows.append([name, *(_both(known[buffer]) if buffer in known else "" for buffer in buffers)])
    return Table(title, ("algorithm", *(format_bytes(buffer) for buffer in buffers)), rows, note)


def _both(point: Point) -> str:
    return f"{point.predicted / 1000:,.0f} / {point.measured / 1000:,.0f}"


def section(results: Results, *, rows: int, command: str, full: bool) -> Section:
    """The report."""
    defaults = [
        [
            format_bytes(pair.default.memory),
            format_bytes(pair.default.disk_buffer),
            format_bytes(pair.best.disk_buffer),
            f"{pair.default_rate / 1000:,.0f}",
            f"{pair.best_rate / 1000:,.0f}",
            f"{pair.loss:.1%}",
            f"{min(pair.losses):.1%} to {max(pair.losses):.1%}",
        ]
        for pair in results.defaults
    ]
    head = (
        "memory",
        "default",
        "optimum",
        "rate at the default",
        "rate at the optimum",
        "median loss",
        "of all turns",
    )
    return Section(
        name="tuning",
        title="Cost models",
        about=f"R has {rows:,} rows of about 120 bytes, a tuple of S has 20. The cost factors are those that "
        "`millstream.tuning.calibrate` measures in less than a minute; then all is measured, warmed up until the rows "
        f"that wait have been replaced several times. This happens in {ROUNDS} rounds, each with the predictions "
        "of its own calibration, and the median round counts. What is compared - disk buffers, memory planned for a "
        "rate and 70% of it - runs by turns in one process; where the rate was more than asked for, that with less "
        "memory is given as a share of it. The machine is not always as fast as when it was calibrated: what is "
        f"compared with a prediction runs by turns with a join of {format_bytes(REFERENCE)} that also ran now and "
        "then during the calibration, and is corrected by how much faster or slower that one is now. R is read through "
        "the page cache, as `ms.join` does by default, and in one round more with O_DIRECT, so that every read goes to "
        "the disk, not corrected: on shared machines that is much slower for seconds to minutes now and then, in the "
        f"calibration as in the measurement. {results.quiet}",
        checks=checks(results, full=full),
        tables=[
            _rates(
                results.over_buffers,
                f"Predicted / measured rate in 1000 tuples/s over the disk buffer, memory {BUDGET:.0%} of R",
            ),
            _rates(results.from_disk, "The same with O_DIRECT", _from_disk(results)),
            Table(
                f"The other algorithms, as they set themselves, memory {BUDGET:.0%} of R",
                ("algorithm", "predicted / measured", "error"),
                [[one.algorithm, _both(one), f"{one.ratio - 1:+.0%}"] for one in results.others],
            ),
            Table("MESHJOIN at the default and at the optimum disk buffer, 1000 tuples/s", head, defaults),
        ],
        raw={
            "rows": rows,
            "over_buffers": [asdict(one) for one in results.over_buffers],
            "defaults": [asdict(pair) for pair in results.defaults],
            "rated": [asdict(one) for one in results.rated],
            "others": [asdict(one) for one in results.others],
            "from_disk": [asdict(one) for one in results.from_disk],
            "disk_rates": results.disk_rates,
        },
        command=command,
        images=("cost-models", "default-buffer"),
    )
