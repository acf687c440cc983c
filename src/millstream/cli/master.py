"""`millstream master`: build, look at and verify a master."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.errors import InputError
from millstream.units import format_bytes

from .parser import add_command, names, size

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millstream.master import Master

    from .parser import Commands

_CSV_ENDINGS = (".csv", ".csv.gz", ".csv.bz2", ".csv.zst")


def register(commands: Commands) -> None:
    """Add `master` and its subcommands."""
    parser = add_command(
        commands,
        "master",
        summary="build, look at and verify master data on disk",
        example="millstream master show /data/products",
    )
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _register_build(actions)

    show = add_command(
        actions,
        "show",
        summary="print what a master holds",
        example="millstream master show /data/products",
    )
    show.add_argument("path", metavar="PATH", help="directory or URI of the master")
    show.add_argument("--at", metavar="VERSION", type=int, help="an earlier version (default: the latest)")
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(run=run_show)

    verify = add_command(
        actions,
        "verify",
        summary="read all of a master and compare the checksums",
        about="Names the file and the segment of the first difference. Changes nothing.",
        example="millstream master verify /data/products",
    )
    verify.add_argument("path", metavar="PATH", help="directory or URI of the master")
    verify.add_argument("--at", metavar="VERSION", type=int, help="an earlier version (default: the latest)")
    verify.set_defaults(run=run_verify)


def _register_build(actions: Commands) -> None:
    build = add_command(
        actions,
        "build",
        summary="build a master, or its next version, from Parquet or CSV files",
        about="Runs a local Spark job. Whoever reads the master sees the old version until the new one is complete.",
        example="millstream master build products.parquet /data/products --key product_id",
    )
    build.add_argument("source", metavar="SOURCE", help="file, directory, pattern or URI of Parquet or CSV files")
    build.add_argument("path", metavar="PATH", help="directory or URI of the master to build")
    build.add_argument("--key", metavar="COLUMN[,COLUMN...]", type=names, required=True, help="the key columns")
    build.add_argument(
        "--format", choices=("parquet", "csv"), help="format of SOURCE (default: csv if it ends in .csv, else parquet)"
    )
    build.add_argument(
        "--schema",
        metavar="DDL",
        help="columns of a CSV file, e.g. 'product_id BIGINT, sku STRING' (default: header line, types guessed)",
    )
    build.add_argument(
        "--layout",
        choices=("key", "frequency"),
        default="key",
        help="order on disk: by key, or by access frequency with an index of all keys (default: key)",
    )
    build.add_argument("--frequency", metavar="COLUMN", help="column that says how often a row is asked for")
    build.add_argument("--segment-bytes", metavar="SIZE", type=size, help="size of a segment on disk, e.g. 16KiB")
    build.set_defaults(run=run_build)


def run_build(arguments: argparse.Namespace) -> None:
    """Build the master that the arguments describe and print a line about it."""
    if (arguments.layout == "frequency") != (arguments.frequency is not None):
        raise InputError("--layout frequency and --frequency COLUMN go together: give both or neither")
    is_csv = (arguments.format or ("csv" if arguments.source.endswith(_CSV_ENDINGS) else "parquet")) == "csv"
    if arguments.schema and not is_csv:
        raise InputError("--schema describes CSV; Parquet files carry their own schema")
    if (
        not any(sign in arguments.source for sign in ("://", "*", "?", "[", "{"))
        and not Path(arguments.source).exists()
    ):
        raise InputError(f"there is nothing at {arguments.source}", path=arguments.source)

    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    from millstream import build_master

    from .progress import spark_tasks
    from .session import quiet_session

    options = {"layout": arguments.layout, "frequency": arguments.frequency, "segment_bytes": arguments.segment_bytes}
    spark = quiet_session("millstream master build")
    try:
        with spark_tasks(spark, f"building {arguments.path}"):
            rows = _read(spark, arguments.source, is_csv=is_csv, schema=arguments.schema)
            built = build_master(
                rows,
                arguments.path,
                key=arguments.key,
                **{name: value for name, value in options.items() if value is not None},
            )
    except (PySparkException, Py4JJavaError) as problem:
        reason = _reason(problem)
        raise InputError(f"cannot build a master from {arguments.source}: {reason}", path=arguments.source) from problem
    finally:
        spark.stop()
    print(f"{built.path}: version {built.version}, {_amount(built)}")


def _read(spark: SparkSession, source: str, *, is_csv: bool, schema: str | None) -> DataFrame:
    if not is_csv:
        return spark.read.parquet(source)
    reader = spark.read.option("header", True).option("mode", "FAILFAST")
    reader = reader.schema(schema) if schema else reader.option("inferSchema", True)
    return reader.csv(source)


def _reason(problem: Exception) -> str:
    """What a Spark error says in one line: its innermost named condition or Python error, or else its first line."""
    text = str(problem)
    named = re.findall(r"\[[A-Z][A-Z0-9_.]+\] .+|^(?:millstream\.errors\.\w+|\w*Error): .+", text, re.MULTILINE)
    line = named[-1] if named else next(iter(text.strip().splitlines()), type(problem).__name__)
    return re.sub(r"^millstream\.errors\.\w+: |\s*SQLSTATE: \w+$", "", line)


def run_show(arguments: argparse.Namespace) -> None:
    """Print what the master holds, for people or as JSON."""
    from millstream.master import Master

    master = Master.open(arguments.path, version=arguments.at)
    if arguments.json:
        print(json.dumps(_facts(master), indent=2))
        return
    lines = _lines(master)
    width = max(len(name) for name, _ in lines) + 2
    for name, value in lines:
        print(f"{name:<{width}}{value}")


def _facts(master: Master) -> dict[str, Any]:
    """What there is to know about a master, for machines."""
    statistics = master.statistics
    return {
        "path": master.path,
        "version": master.version,
        "versions": master.versions,
        "created": master.manifest.created,
        "layout": master.layout,
        "key": master.key,
        "schema": {column.name: str(column.type) for column in master.schema},
        "average_row_bytes": statistics.average_row_bytes,
        **asdict(statistics),
    }


def _lines(master: Master) -> list[tuple[str, str]]:
    """The same for people: a name and a value a line; a value that goes on has no name."""
    statistics = master.statistics
    lines = [
        ("path", master.path),
        ("version", f"{master.version}, made {master.manifest.created}"),
        ("versions", _some(master.versions)),
        ("key", ", ".join(master.key)),
        ("layout", f"by {master.layout}"),
        ("rows", f"{master.rows:,}, {format_bytes(statistics.average_row_bytes)} each on disk"),
        ("bytes", f"{statistics.bytes:,} ({format_bytes(statistics.bytes)})"),
        ("segments", f"{statistics.segments:,}, the largest {format_bytes(statistics.max_segment_bytes)}"),
        ("distinct keys", f"{statistics.distinct_keys:,}, {statistics.rows_per_key:,.1f} rows each"),
        ("NULL keys", f"{statistics.null_key_rows:,} rows"),
    ]
    lines += _listing("heaviest keys", [f"{key}  {rows:,} rows" for key, rows in statistics.heaviest_keys[:10]])
    lines += _listing("columns", [f"{column.name}  {column.type}" for column in master.schema])
    return lines


def _listing(name: str, values: Sequence[str]) -> list[tuple[str, str]]:
    return [(name if i == 0 else "", value) for i, value in enumerate(values or ["none"])]


def _some(versions: Sequence[int]) -> str:
    """All versions if they are few, otherwise the ends."""
    if len(versions) <= 8:
        return ", ".join(map(str, versions))
    return f"{versions[0]} ... {versions[-1]} ({len(versions)} versions)"


def run_verify(arguments: argparse.Namespace) -> None:
    """Read all segments of the master; the first wrong checksum is the error."""
    from millstream.master import Master

    from .progress import counting

    master = Master.open(arguments.path, version=arguments.at)
    with counting(f"verifying {arguments.path}") as progress:
        master.verify(progress=progress)
    print(f"{master.path}: version {master.version} is intact, {_amount(master)}")


def _amount(master: Master) -> str:
    return f"{master.rows:,} rows, {format_bytes(master.statistics.bytes)}"
