"""The shop of the demo: starts its parts, lets them work, kills them if asked to, drains them and proves the result."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from millstream.bench.data import Data
from millstream.errors import InputError, MillstreamError
from millstream.staging import connect as connect_staging
from millstream.warehouse import connect as connect_warehouse
from millstream.workloads import Workload

from . import proof
from .counting import FACTS, FLOW, LEGACY, STREAM, TILL, Figures, Observer, Sources
from .memory import Memory
from .parts import Part, free_port, millstream
from .sources import APPLICATION, CLOSED, COLUMNS
from .sources import FLOW as FLOW_FILE
from .view import View, open_console, step

_SHARES = {LEGACY: 0.25, TILL: 0.75}  # of the orders
_TYPES = dict(zip(COLUMNS, ("bigint", "bigint", "bigint", "int", "int", "int"), strict=True))
_QUIET = 200  # orders per second before the shop opens
_WARM_BATCHES = 8  # at the full rate before it opens, until compiled code and caches are there
_LOOK_AT_MEMORY = 2.0  # seconds
_DOWN = 1.0  # seconds that a part stays away after it was killed
_KILLED = ("till", "warehouse", "capture", "staging", "flow", "legacy")
_STALLED = 150.0  # seconds without any progress after which draining is given up


def run_shop(arguments: argparse.Namespace) -> None:
    """Run the shop in a folder of its own; raises if the proof fails."""
    if not FLOW_FILE.exists() or not APPLICATION.exists():
        raise MillstreamError(f"the shop's flow and legacy application are not at {APPLICATION.parent}; use a checkout")
    from millstream.spark.session import find_java

    find_java()  # says what to install, before anything is started
    console = open_console()
    if arguments.keep is not None:
        if arguments.keep.exists() and (not arguments.keep.is_dir() or any(arguments.keep.iterdir())):
            raise InputError(f"{arguments.keep} is not an empty directory; name a new one")
        arguments.keep.mkdir(parents=True, exist_ok=True)
    with _signals():
        cache = arguments.cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millstream/demo"
        with step(console, f"product master of {arguments.products:,} rows in {cache}"):
            master = Data(cache.absolute()).master(Workload(keys=arguments.products))
        folder = (arguments.keep or Path(tempfile.mkdtemp(prefix="millstream-demo-"))).absolute()
        shop = Shop(folder, master, products=arguments.products)
        try:
            _run(shop, console, arguments)
        finally:
            shop.end()
            if arguments.keep is None:
                shutil.rmtree(folder, ignore_errors=True)
    if arguments.keep is not None:
        console.print(f"kept in {folder}: warehouse.duckdb, the log of staging, and the logs of all parts")


class Shop:
    """The parts, where they keep their data, and how many orders per second the sources should take."""

    def __init__(self, folder: Path, master: str, *, products: int) -> None:
        self.folder = folder
        for name in ("legacy", "till", "capture", "logs"):
            (folder / name).mkdir()
        port, warehouse_port = free_port(), free_port()
        self.staging_url, self.warehouse_url = f"grpc://127.0.0.1:{port}", f"http://127.0.0.1:{warehouse_port}"
        (folder / "legacy" / "capture.ini").write_text(
            f"[capture]\nblock = 100\nhost = 127.0.0.1\nport = {port}\nstream = {STREAM}\nsource = {LEGACY}\n"
        )
        self._rates = folder / "rates"
        self.set_rate(_QUIET)
        environment = {
            "SHOP_WAREHOUSE": self.warehouse_url,
            "SHOP_STAGING": self.staging_url,
            "SHOP_PRODUCTS": master,
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        }
        schema = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())
        follow = ["--stream", STREAM, "--source", TILL, "--to", self.staging_url, "--schema", schema]
        commands = {
            "staging": millstream("stage", folder / "staging", "--port", str(port), "--no-http"),
            "warehouse": millstream(
                "serve", folder / "warehouse.duckdb", "--port", str(warehouse_port), "--memory", "128MB"
            ),
            "flow": millstream("run", FLOW_FILE, "--checkpoint", folder / "checkpoint"),
            "legacy": self._source("legacy", products),
            "till": self._source("till", products),
            "capture": millstream(
                "capture", "file", folder / "till" / "till.csv", "--state", folder / "capture", *follow
            ),
        }
        self.parts = {
            name: Part(name, command, log=folder / "logs" / f"{name}.log", environment=environment)
            for name, command in commands.items()
        }

    def _source(self, name: str, products: int) -> list[str]:
        options = ["--share", str(_SHARES[name]), "--products", str(products)]
        return ["-m", "millstream.cli.demo.sources", name, str(self.folder / name), str(self._rates), *options]

    def set_rate(self, rate: int | str) -> None:
        """Tell the sources how many orders per second they take together, or that the shop is closed."""
        new = self._rates.with_suffix(".new")
        new.write_text(str(rate))
        new.rename(self._rates)

    def check(self) -> None:
        """Raise if a part has ended by itself."""
        for part in self.parts.values():
            part.check()

    def end(self) -> None:
        """End all parts; what they leave behind is whole in any case, so none is waited for long."""
        impatient = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave parts behind
        for name in ("flow", "legacy", "till"):
            self.parts[name].kill()
        for name in ("capture", "warehouse", "staging"):
            self.parts[name].end(seconds=5.0)
        signal.signal(signal.SIGINT, impatient)


def _run(shop: Shop, console: Console, arguments: argparse.Namespace) -> None:
    parts = shop.parts
    with (
        connect_staging(shop.staging_url, timeout=5.0) as staging,
        connect_warehouse(shop.warehouse_url, timeout=20.0, patience=0.0) as warehouse,
    ):
        sources = Sources(shop.folder)
        observer = Observer(sources, staging, warehouse, parts["flow"])
        with step(console, f"starting staging at {shop.staging_url} and the warehouse at {shop.warehouse_url}"):
            for name in ("staging", "warehouse"):
                parts[name].start()
            parts["staging"].until(lambda: observer.look().staged is not None)
            parts["warehouse"].until(lambda: observer.look().loaded is not None)
            _register(shop.staging_url)
        with step(console, "starting the sources and the flow (Spark), until its first batch is in the warehouse"):
            for name in ("flow", "legacy", "till", "capture"):
                parts[name].start()
            first = _await_batches(shop, observer, 1)
        with step(console, "warming up"):
            shop.set_rate(arguments.rate)
            _await_batches(shop, observer, first + _WARM_BATCHES)
            shop.set_rate(_QUIET)
            parts["flow"].until(lambda: _idle(shop, observer.look()))
        opened = time.monotonic()
        memory = Memory(parts)
        with View(console) as view:
            _work(shop, observer, view, memory, arguments)
            closed = time.monotonic()
            _drain(shop, observer, view)
        console.print(memory.table())
        _prove(console, sources, shop, since=time.monotonic() - opened)
        if arguments.report is not None:
            ago = time.monotonic() - opened
            found = {"rate": arguments.rate, "seconds": arguments.seconds, "closed": closed - opened}
            found |= _found(shop.warehouse_url, ago) | {"memory": memory.spans()}
            arguments.report.write_text(json.dumps(found, indent=1) + "\n")


def _register(url: str) -> None:
    """Make the stream known, so that the flow can begin before the first order."""
    types = {"bigint": pa.int64(), "int": pa.int32()}
    schema = pa.schema([(name, types[kind]) for name, kind in _TYPES.items()])
    with connect_staging(url) as client:
        client.open(STREAM, "demo", incarnation=uuid.uuid4().hex, schema=schema).close()


def _await_batches(shop: Shop, observer: Observer, wanted: int) -> int:
    """Wait until so many batches are in the warehouse and both sources have sold something; how many there are."""
    found = 0

    def there() -> bool:
        nonlocal found
        shop.check()
        now = observer.look()
        found = now.batches or 0
        return found >= wanted and all(now.sent.values())

    shop.parts["flow"].until(there, seconds=180.0)
    return found


def _idle(shop: Shop, now: Figures) -> bool:
    """Whether the flow has caught up with what is ordered before the shop opens."""
    shop.check()
    return now.done is not None and now.captured - now.done < 5 * _QUIET


def _work(shop: Shop, observer: Observer, view: View, memory: Memory, arguments: argparse.Namespace) -> None:
    """Let the shop be open for the wanted time; with --kill each part is killed once and started again."""
    shop.set_rate(arguments.rate)
    view.tell(f"the shop is open: {arguments.rate:,} orders/s for {arguments.seconds} s")
    begun = time.monotonic()
    spacing = arguments.seconds / (len(_KILLED) + 1)
    kills = [(begun + spacing * (1 + at), name) for at, name in enumerate(_KILLED)] if arguments.kill else []
    starts: list[tuple[float, str]] = []
    look = weigh = begun
    while (now := time.monotonic()) < begun + arguments.seconds or starts:
        if kills and now >= kills[0][0]:
            name = kills.pop(0)[1]
            view.tell(f"killing: {name}")
            shop.parts[name].kill()
            starts.append((time.monotonic() + _DOWN, name))
        if starts and now >= starts[0][0]:
            name = starts.pop(0)[1]
            shop.parts[name].start()
            view.tell(f"started again: {name}")
        if now >= look:
            shop.check()
            view.show(observer.look(), about=f"open for {max(0.0, begun + arguments.seconds - now):.0f} s")
            look = now + 1.0
        if now >= weigh:
            memory.note(now - begun)
            weigh = now + _LOOK_AT_MEMORY
        time.sleep(0.05)


def _drain(shop: Shop, observer: Observer, view: View) -> None:
    """Close the shop and wait until all that was ordered has come to its end, or nothing moves any more."""
    shop.set_rate(CLOSED)
    view.tell("the shop is closed: draining")
    for name in (LEGACY, TILL):
        shop.parts[name].finish(60.0)
    moved, before = time.monotonic(), None
    while time.monotonic() - moved < _STALLED:
        shop.check()
        now = observer.look()
        view.show(now, about="draining")
        if now.staged == now.captured == now.done:
            return
        if (now.staged, now.done, now.batches) != before:
            moved, before = time.monotonic(), (now.staged, now.done, now.batches)
        time.sleep(1.0)
    view.tell(f"nothing has moved for {_STALLED:.0f} s")


def _prove(console: Console, sources: Sources, shop: Shop, *, since: float) -> None:
    """Print the accounts, the freshness and some SQL; raises if anything does not add up."""
    with (
        connect_staging(shop.staging_url) as staging,
        connect_warehouse(shop.warehouse_url, patience=20.0) as warehouse,
    ):
        console.print()
        proof.print_queries(console, warehouse)
        console.print(proof.freshness_table(warehouse, since=since))
        found = proof.lines(sources, warehouse)
        console.print(proof.as_table(found))
        wrong = proof.mistakes(found, staging, warehouse)
    for line in wrong:
        console.print(line, style="red")
    if wrong:
        raise MillstreamError(f"the proof has failed: {wrong[0]} (use --keep DIR to look into it)")
    console.print(f"every order of flow {FLOW} is accounted for, once")


def _found(url: str, ago: float) -> dict[str, object]:
    """What the warehouse knows of the shop since it opened, so many seconds ago: freshness, and when rows came."""
    opened = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=ago)
    with connect_warehouse(url, patience=20.0) as warehouse:
        fresh = {one.table: one.to_json() for one in warehouse.freshness(FLOW, since=ago)}
        ledger = warehouse.ledger(FLOW, table=FACTS, last=100_000)
    came = [(datetime.datetime.fromisoformat(line["committed_at"]), line["counts"]["sent"]) for line in ledger]
    batches = [((at - opened).total_seconds(), rows) for at, rows in sorted(came) if at >= opened]
    return {"freshness": fresh, "batches": batches}


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does: with all its parts."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
