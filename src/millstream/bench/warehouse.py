"""How many rows a second go into the warehouse through its web service, and how long a batch takes."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from ..errors import MillstreamError
from ..units import format_bytes
from ..warehouse import TableSpec, connect
from ..warehouse.wire import encode
from .report import Check, Section, Table

TARGETS = {"duckdb": 300_000, "postgres": 100_000}  # rows a second, appended in batches of BATCH
BATCH = 50_000
SENDERS = 2
_MODES = ("append", "upsert", "aggregate")
_POSTGRES_HOMES = Path("/usr/lib/postgresql")

SCHEMA = pa.schema(
    [
        ("order_id", pa.int64()),
        ("product_id", pa.int64()),
        ("customer", pa.string()),
        ("quantity", pa.int32()),
        ("amount", pa.float64()),
        ("ordered_at", pa.timestamp("us", tz="UTC")),
        ("_source", pa.string()),
        ("_sequence", pa.int64()),
        ("_captured", pa.timestamp("us", tz="UTC")),
    ]
)


@dataclass(frozen=True)
class Case:
    """Senders that load batches of so many rows into a table, one batch after the other, for some seconds."""

    database: str
    mode: str = "append"
    batch: int = BATCH
    seconds: float = 10.0


@dataclass(frozen=True)
class Loaded:
    """What came of a case; `server_bytes` is the resident set of the server at the end."""

    case: Case
    rows: int
    seconds: float
    row_bytes: float
    batch_p50: float
    batch_p99: float
    fresh_p50: float
    fresh_p99: float
    server_bytes: int

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


def cases(databases: list[str], *, quick: bool) -> list[Case]:
    """Each database with each mode, and batches of several sizes."""
    found = [Case(name, mode) for name in databases for mode in _MODES]
    found += [Case(name, batch=size) for name in databases for size in (100, 5_000, 200_000)]
    return [replace(case, seconds=2.0) for case in found] if quick else found


def run(todo: list[Case], folder: Path, say: Callable[[str], object]) -> list[Loaded]:
    """Measure all cases, each with an empty database and a server of its own."""
    results = []
    for case in todo:
        say(f"warehouse: {case}")
        with tempfile.TemporaryDirectory(prefix="warehouse-", dir=folder) as place:
            results.append(measure(case, Path(place)))
    return results


def databases() -> list[str]:
    """The databases that can be measured here: PostgreSQL if its programs are installed."""
    return ["duckdb", *(["postgres"] if _postgres_programs() else [])]


def measure(case: Case, place: Path) -> Loaded:
    """Load for some seconds, after as many batches as it takes to warm up."""
    with _database(case.database, place) as database, _server(database, place / "parts") as (url, process):
        spec = _spec(case.mode)
        with connect(url) as client:
            client.create(spec)
            load_for(url, case, seconds=min(2.0, case.seconds / 3), flow="warm")
            begun = time.perf_counter()
            batches = load_for(url, case, seconds=case.seconds, flow="measured")
            seconds = time.perf_counter() - begun
            found = [one for one in client.freshness() if one.flow.startswith("measured")]
        resident = psutil.Process(process).memory_info().rss
    sample = encode(rows_of(case.batch, 0, np.random.default_rng(0)))
    rows = sum(one.rows for one in found)
    if rows != len(batches) * case.batch:
        raise MillstreamError(f"{len(batches)} batches of {case.batch} rows were sent, {rows} rows arrived")
    return Loaded(
        case=case,
        rows=rows,
        seconds=seconds,
        row_bytes=sample.body.size / case.batch,
        batch_p50=float(np.quantile(batches, 0.5)),
        batch_p99=float(np.quantile(batches, 0.99)),
        fresh_p50=max(one.p50 or 0.0 for one in found),
        fresh_p99=max(one.p99 or 0.0 for one in found),
        server_bytes=resident,
    )


def load_for(url: str, case: Case, *, seconds: float, flow: str) -> list[float]:
    """Load batches from `SENDERS` threads for so long; the seconds that each batch took."""
    until = time.monotonic() + seconds
    taken: list[float] = []
    problems: list[BaseException] = []

    def send(number: int) -> None:
        chance = np.random.default_rng(number)
        table = rows_of(case.batch, number << 40, chance)
        position = SCHEMA.get_field_index("_captured")
        batch = 0
        try:
            with connect(url) as client:
                while time.monotonic() < until:
                    now = pa.scalar(time.time_ns() // 1000, SCHEMA.field(position).type)
                    data = table.set_column(position, SCHEMA.field(position), pa.repeat(now, case.batch))
                    begun = time.perf_counter()
                    client.load(_spec(case.mode).name, flow=f"{flow}-{number}", batch=batch, data=data)
                    taken.append(time.perf_counter() - begun)
                    batch += 1
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(SENDERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return taken


def rows_of(count: int, first: int, chance: np.random.Generator) -> pa.Table:
    """Orders of about 100 bytes; products are those of a master of a million."""
    numbers = np.arange(first, first + count)
    products = chance.integers(0, 1_000_000, count)
    columns = [
        pa.array(numbers),
        pa.array(products),
        pa.array([f"customer {number:015d}" for number in chance.integers(0, 100_000, count)]),
        pa.array(chance.integers(1, 9, count).astype(np.int32)),
        pa.array(np.round(chance.random(count) * 100, 2)),
        pa.array(numbers % (1 << 50), pa.timestamp("us", tz="UTC")),
        pa.array(["till-01"] * count),
        pa.array(numbers),
        pa.array(numbers % (1 << 50), pa.timestamp("us", tz="UTC")),
    ]
    return pa.table(columns, schema=SCHEMA)


def _spec(mode: str) -> TableSpec:
    if mode == "upsert":
        return TableSpec("orders", SCHEMA, mode="upsert", key=["product_id"])
    if mode == "aggregate":
        aggregates = {"n": "count(*)", "revenue": "sum(amount)", "mean": "avg(amount)", "most": "max(quantity)"}
        return TableSpec("orders", SCHEMA, mode="aggregate", key=["product_id"], aggregates=aggregates)
    return TableSpec("orders", SCHEMA)


@contextlib.contextmanager
def _server(database: str, parts: Path) -> Iterator[tuple[str, int]]:
    """`millstream serve` in a process of its own: its address and process id."""
    run = "import sys; from millstream.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", run, "serve", database, "--port", "0", "--parts", str(parts)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"http://[\d.]+:\d+", process.stdout.readline())
        if found is None:
            raise MillstreamError("the warehouse did not start")
        yield found[0], process.pid
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@contextlib.contextmanager
def _database(kind: str, place: Path) -> Iterator[str]:
    if kind == "duckdb":
        yield str(place / "warehouse.duckdb")
        return
    with _postgres() as dsn:
        yield dsn


def _postgres_programs() -> Path | None:
    homes = sorted(_POSTGRES_HOMES.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    found = str(homes[-1]) if homes else shutil.which("initdb")
    return Path(found).resolve().parent if found else None


@contextlib.contextmanager
def _postgres() -> Iterator[str]:
    """A fresh PostgreSQL with its own defaults (durable commits), in a folder below /tmp; its address."""
    programs = _postgres_programs()
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="millstream-bench-postgres-"))
    user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None

    def become() -> None:
        if user is not None:  # PostgreSQL refuses to run as root
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)

    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    data = str(folder / "data")
    initdb = [str(programs / "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8"]
    subprocess.run(initdb, check=True, capture_output=True, preexec_fn=become, cwd="/")
    options = ["-p", str(port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
    process = subprocess.Popen(
        [str(programs / "postgres"), "-D", data, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=become,
    )
    try:
        ready = [str(programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(port)]
        until = time.monotonic() + 30
        while subprocess.run(ready, capture_output=True).returncode and time.monotonic() < until:
            time.sleep(0.1)
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def section(results: list[Loaded], *, command: str, full: bool) -> Section:
    """The report."""
    checks = []
    for one in results:
        if one.case.mode == "append" and one.case.batch == BATCH:
            target = TARGETS[one.case.database]
            passed = one.rate >= target if full or one.rate >= target else None
            what = f"rows into {one.case.database}, batches of {BATCH:,}"
            checks.append(Check(what, f"{one.rate:,.0f} rows/s", f">= {target:,} rows/s", passed))
    rows = [
        [
            f"{one.case.database}, {one.case.mode}, {one.case.batch:,}",
            f"{one.rate:,.0f}",
            f"{one.row_bytes:.0f}",
            f"{one.batch_p50 * 1000:.0f} ms",
            f"{one.batch_p99 * 1000:.0f} ms",
            f"{one.fresh_p50:.3f} s",
            f"{one.fresh_p99:.3f} s",
            format_bytes(one.server_bytes),
        ]
        for one in results
    ]
    head = ("database, mode, rows a batch", "rows/s", "B/row", "batch p50", "p99", "fresh p50", "p99", "server")
    return Section(
        name="warehouse",
        title="Loading the warehouse",
        about=f"{SENDERS} senders load batches over HTTP into `millstream serve`, a process of its own on the same "
        "machine; a batch is done when it is committed durably. Upserts and aggregates have a key of a million values. "
        "Freshness is what the ledger says, from the moment a batch was made.",
        checks=checks,
        tables=[Table("Loading", head, rows)],
        raw={"loads": [asdict(one) for one in results]},
        command=command,
    )
