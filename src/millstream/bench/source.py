"""What capture costs the application: orders per second of the legacy application, plain and with the hook.

Run as a program it is one measurement: the application takes slices of orders, by turns with the plain library and with
the hooked one, in the same process and file. So both see the same machine, the same file and the same moment; what
differs is the hook. Neighbouring slices are compared, and the median of the ratios is the finding.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import MillstreamError
from ..staging import Server, connect
from .report import Check, Section, Table

APPLICATION = Path(__file__).parents[3] / "examples" / "legacy_orders"
BLOCKS = (1, 25, 50, 100, 1000)
TARGET = 0.02


@dataclass(frozen=True)
class Overhead:
    """One block size: seconds of each slice of orders, plain and hooked, by the clock and by the CPU of the thread."""

    block: int
    orders: int
    plain: list[float]
    hooked: list[float]
    plain_cpu: list[float]
    hooked_cpu: list[float]
    application_ns: float
    sender_ns: float
    sent: int
    staged: int = 0
    away: bool = False

    @property
    def name(self) -> str:
        return f"{self.block:,}{', staging away' if self.away else ''}"

    @property
    def share(self) -> float:
        """By how much a slice takes longer with the hook."""
        return _ratio(self.hooked, self.plain)

    @property
    def cpu_share(self) -> float:
        return _ratio(self.hooked_cpu, self.plain_cpu)

    @property
    def plain_rate(self) -> float:
        return self.orders / statistics.median(self.plain)

    @property
    def rate(self) -> float:
        return self.orders / statistics.median(self.hooked)


def _ratio(hooked: Sequence[float], plain: Sequence[float]) -> float:
    """Median over groups of four slices (plain, hooked, hooked, plain), so that a drift of the machine cancels out."""
    groups = zip(zip(hooked[::2], hooked[1::2], strict=True), zip(plain[::2], plain[1::2], strict=True), strict=True)
    return statistics.median(sum(one) / sum(other) for one, other in groups) - 1


def run(
    *, slices: int, orders: int, blocks: Sequence[int] = BLOCKS, progress: Callable[[int, int], None] = lambda *_: None
) -> list[Overhead]:
    """Measure each block size in a process of its own, with staging and sender on the other core."""
    cases: list[tuple[int, bool]] = []
    if not APPLICATION.is_dir():
        raise MillstreamError(f"the legacy application is not at {APPLICATION}; run this from a checkout")
    results = []
    folder = Path(tempfile.mkdtemp(prefix="millstream-bench-source-"))
    try:
        with Server(folder / "staging", http_port=None) as server, connect(server.url) as client:
            # with staging away the application does the same: it has to do with the spool alone, not with the network
            cases += [*((block, False) for block in blocks), *([(100, True)] if 100 in blocks else [])]
            for number, (block, away) in enumerate(cases):
                progress(number, len(cases))
                told: dict[str, Any] = {"block": block, "slices": slices, "orders": orders, "away": away}
                told |= {"url": server.url, "folder": str(folder / f"case-{number}")}
                done = subprocess.run(
                    [sys.executable, "-m", __name__, json.dumps(told)], capture_output=True, text=True, check=False
                )
                if done.returncode:
                    raise MillstreamError(f"the application failed: {done.stderr.strip()[-500:]}")
                found = Overhead(**json.loads(done.stdout.splitlines()[-1]))
                staged = 0 if away else client.stream(f"orders-{block}").records
                results.append(replace(found, staged=staged))
        progress(len(cases), len(cases))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return results


def measure(told: dict[str, Any]) -> Overhead:
    """The measurement itself: slices plain, hooked, hooked, plain, and so on."""
    block, orders, folder = told["block"], told["orders"], Path(told["folder"])
    folder.mkdir()
    address = "127.0.0.1:1" if told["away"] else told["url"].rpartition("/")[2]
    host, _, port = address.rpartition(":")
    settings = folder / "capture.ini"
    settings.write_text(f"[capture]\nblock = {block}\nhost = {host}\nport = {port}\nstream = orders-{block}\n")
    os.environ["CAPTURE_INI"] = str(settings)
    sys.path.insert(0, str(APPLICATION))
    isam, application = importlib.import_module("isam"), importlib.import_module("orders")
    plain = isam.IsamFile
    hooked = importlib.import_module("capture").CapturedFile
    till = application.Till(folder / "shop")
    file, regulator = till._file, till._file.regulator
    times: dict[Any, list[tuple[float, float]]] = {plain: [], hooked: []}
    gc.collect()
    gc.freeze()  # what the imports left behind is not the application's
    for kind in (plain, hooked):
        file.__class__ = kind
        _slice(till, orders)
    if not told["away"]:
        regulator.flush(30)
    for _ in range(told["slices"] // 2):
        for kind in (plain, hooked, hooked, plain):
            file.__class__ = kind
            times[kind].append(_slice(till, orders))
    file.__class__ = hooked
    regulator.close(timeout=0 if told["away"] else 60)
    stats = regulator.stats
    if (stats.spooled and not told["away"]) or stats.rejected or stats.dropped:
        raise MillstreamError(f"not all orders reached staging: {stats}")
    return Overhead(
        block=block,
        orders=orders,
        plain=[wall for wall, _ in times[plain]],
        hooked=[wall for wall, _ in times[hooked]],
        plain_cpu=[cpu for _, cpu in times[plain]],
        hooked_cpu=[cpu for _, cpu in times[hooked]],
        application_ns=stats.application_ns_per_record,
        sender_ns=stats.sender_ns / stats.sent,
        sent=stats.sent,
        away=told["away"],
    )


def _slice(till: Any, orders: int) -> tuple[float, float]:
    take = till.take
    cpu, wall = time.thread_time(), time.perf_counter()
    for _ in range(orders):
        take()
    return time.perf_counter() - wall, time.thread_time() - cpu


def section(results: Sequence[Overhead], *, command: str) -> Section:
    """The findings."""
    rows = [
        (
            one.name,
            f"{one.plain_rate:,.0f}",
            f"{one.rate:,.0f}",
            f"{one.share:+.1%}",
            f"{one.cpu_share:+.1%}",
            f"{1e9 * (statistics.median(one.hooked_cpu) - statistics.median(one.plain_cpu)) / one.orders:,.0f} ns",
            "-" if one.away else f"{one.sender_ns:,.0f} ns",
        )
        for one in results
    ]
    table = Table(
        "Orders per second of the legacy application",
        ("block", "plain", "captured", "time", "CPU", "per record, application", "per record, sender"),
        rows,
        note="Time and CPU: by how much a slice of orders takes longer with the hook, median of neighbouring slices.",
    )
    checks = []
    there = [one for one in results if not one.away]
    with contextlib.suppress(StopIteration):
        main = next(one for one in results if one.block == 100 and not one.away)
        checks.append(
            Check("throughput lost at block 100", f"{main.share:.1%}", f"at most {TARGET:.0%}", main.share <= TARGET)
        )
    checks.append(
        Check(
            "orders sent and staged",
            f"{sum(one.sent for one in there):,} and {sum(one.staged for one in there):,}",
            "equal",
            all(one.sent == one.staged for one in there),
        )
    )
    return Section(
        name="source",
        title="At the source",
        about="A legacy application writes orders to a keyed record file as fast as it can; a hook in the library "
        "sends them to staging, in blocks. Sender and staging run beside it on the same two cores.",
        checks=checks,
        tables=[table],
        raw={"source": [asdict(one) for one in results]},
        command=command,
        images=("source-overhead",),
    )


if __name__ == "__main__":
    print(json.dumps(asdict(measure(json.loads(sys.argv[1])))))
