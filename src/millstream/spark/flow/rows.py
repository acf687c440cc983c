"""Activities that look at one row at a time, as operations on a DataFrame of marked rows."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType

from ...flow.nodes import (
    SYSTEM_COLUMNS,
    Cast,
    Deduplicate,
    Derive,
    Domain,
    Enrich,
    Filter,
    ForeignKey,
    Lookup,
    Node,
    NotNull,
    Rename,
    Replicate,
    Route,
    Select,
    Source,
    SurrogateKey,
)
from ...joins.plan import master_columns
from ...master import Master
from ..join import join
from ..types import column
from .context import Context
from .remembering import claimed, numbered
from .state import alive, as_json, missing, no_key, reject, shown, unmarked

BRANCH = "__branch"
CORRUPT = "_corrupt_record"
_SHORTENED = 1000


def apply(node: Node, df: DataFrame, context: Context) -> DataFrame:
    """The rows behind an activity, from those in front of it."""
    match node:
        case Select():
            reason = F.lit(f"not true: {node.condition}")
            return _filter(node, df, context, [(~F.coalesce(F.expr(node.condition), F.lit(False)), reason)])
        case NotNull():
            cases = [(missing(df, name), F.lit(f"{name} has no value")) for name in node.columns]
            return _filter(node, df, context, cases)
        case Domain():
            return _filter(node, df, context, [(~F.coalesce(_inside(node), F.lit(False)), _outside(node))])
        case Derive():
            return derived(df, {name: F.expr(text) for name, text in node.columns.items()})
        case Rename():
            return df.withColumnsRenamed(dict(node.columns))
        case Cast():
            return _cast(node, df, context)
        case SurrogateKey():
            rejecting = _filter(node, df, context, no_key(df, node.key))
            return numbered(rejecting, node, context)
        case Deduplicate():
            rejecting = _filter(node, df, context, no_key(df, node.key))
            return claimed(rejecting, node, context)
        case Enrich():
            return _enrich(node, df, context)
        case ForeignKey():
            return _foreign_key(node, df, context)
        case Replicate():
            return df
        case Route():
            return _route(node, df, context)
    raise AssertionError(f"{node.kind} is not an activity on single rows")


def arrive(source: Source, df: DataFrame, context: Context) -> DataFrame:
    """The rows of a source, marked, with all system columns; rows with a text that is too long are rejects."""
    types = {"_source": "string", "_sequence": "bigint", "_captured": "timestamp"}
    absent = {name: F.lit(None).cast(types[name]) for name in SYSTEM_COLUMNS if name not in df.columns}
    if "_captured" in absent:
        absent["_captured"] = F.current_timestamp()
    df = unmarked(df.withColumns(absent) if absent else df)
    number = context.number(source)
    if CORRUPT in df.columns:
        damaged = [(F.col(CORRUPT).isNotNull(), F.lit("cannot be read as a record"))]
        df = reject(df, number, damaged, keep=True, row=F.substring(F.col(CORRUPT), 1, _SHORTENED)).drop(CORRUPT)
    texts = [
        field.name
        for field in df.schema.fields
        if isinstance(field.dataType, StringType | BinaryType) and not field.name.startswith("__")
    ]
    if not texts:
        return df
    cases = [
        (F.length(column(name)) > source.max_text, F.lit(f"{name} is longer than {source.max_text:,}"))
        for name in texts
    ]
    # what is too long is cut before it is kept, so that no single row can fill a memory further on
    limited = {
        name: F.when(F.length(column(name)) > source.max_text, F.substring(column(name), 1, _SHORTENED)).otherwise(
            column(name)
        )
        for name in texts
    }
    any_long = F.greatest(*[F.coalesce(F.length(column(name)), F.lit(0)) for name in texts], F.lit(0))
    long = "__long"
    flagged = df.withColumn(long, F.when(any_long > source.max_text, F.coalesce(*[F.when(c, r) for c, r in cases])))
    cut = flagged.withColumns(limited)
    return reject(cut, number, [(F.col(long).isNotNull(), F.col(long))], keep=True).drop(long)


def derived(df: DataFrame, columns: dict[str, Column]) -> DataFrame:
    """New columns for rows that are alive; all are computed from the columns that came in."""
    return df.withColumns({name: F.when(alive(), value) for name, value in columns.items()})


def _filter(
    node: Filter, df: DataFrame, context: Context, cases: list[tuple[Column, Column]], *, row: Column | None = None
) -> DataFrame:
    return reject(df, context.number(node), cases, keep=node.rejects == "keep", row=row)


def _inside(node: Domain) -> Column:
    value = column(node.column)
    if node.values is not None:
        return value.isin(*node.values)
    if node.matches is not None:
        return value.cast("string").rlike(f"^(?:{node.matches})$")
    fits = F.lit(True)
    if node.low is not None:
        fits = fits & (value >= F.lit(node.low))
    if node.high is not None:
        fits = fits & (value <= F.lit(node.high))
    return fits


def _outside(node: Domain) -> Column:
    return F.concat(F.lit(f"{node.column} is "), shown(column(node.column)), F.lit(f", not {node.summary}"))


def _cast(node: Cast, df: DataFrame, context: Context) -> DataFrame:
    new = {f"__cast_{at}": (name, kind) for at, (name, kind) in enumerate(node.columns.items())}
    df = df.withColumns({temp: F.expr(f"try_cast(`{name}` AS {kind})") for temp, (name, kind) in new.items()})
    cases = [
        (
            F.col(temp).isNull() & column(name).isNotNull(),
            F.concat(F.lit(f"{name}: "), shown(column(name)), F.lit(f" is no {kind}")),
        )
        for temp, (name, kind) in new.items()
    ]
    df = _filter(node, df, context, cases)
    return df.withColumns({name: F.col(temp) for temp, (name, _) in new.items()}).drop(*new)


def _route(node: Route, df: DataFrame, context: Context) -> DataFrame:
    """The branch of each row in the column `BRANCH`, by its position among the outputs."""
    branch = F.when(F.lit(False), F.lit(0))
    for position, condition in enumerate(node.branches.values()):
        branch = branch.when(F.coalesce(F.expr(condition), F.lit(False)), F.lit(position))
    if node.otherwise:
        branch = branch.otherwise(F.lit(len(node.branches)))
    df = df.withColumn(BRANCH, branch)
    return _filter(node, df, context, [(F.col(BRANCH).isNull(), F.lit("no branch wants it"))])


def _enrich(node: Enrich, df: DataFrame, context: Context) -> DataFrame:
    master = Master.open(context.graph.path(node.master))
    brought = master_columns(master, None if node.columns is None else list(node.columns))
    joined, found = looked_up(node, df, context, brought)
    if node.how == "inner":
        joined = _filter(node, joined, context, [(~found, _no_match(node))], row=as_json(df))
    return joined.drop(FOUND)


def _foreign_key(node: ForeignKey, df: DataFrame, context: Context) -> DataFrame:
    joined, found = looked_up(node, df, context, [])
    return _filter(node, joined, context, [(~found, _no_match(node))]).drop(FOUND)


FOUND = "__found"


def looked_up(node: Lookup, df: DataFrame, context: Context, brought: list[str]) -> tuple[DataFrame, Column]:
    """The rows with columns of a master, NULL where there is no match, and whether there was one.

    Rows that are not alive, and those without a key, are not looked up.
    """
    master = Master.open(context.graph.path(node.master))
    assert isinstance(node.on, dict)
    names = df.columns
    keys = {}
    for at, (left, right) in enumerate(node.on.items()):
        usable = alive() & ~missing(df, left)
        keys[f"__key_{at}"] = right
        df = df.withColumn(f"__key_{at}", F.when(usable, column(left)))
    # stand-ins for the stream's names, so that a master column may have the name of a stream column that is its key
    renamed = df.toDF(*[f"__s{at}" for at in range(len(names))], *keys)
    witness = master.key[0]
    joined = join(
        renamed,
        context.graph.path(node.master),
        keys,
        how="left",
        memory=node.memory,
        algorithm=node.algorithm,
        columns=[witness, *[name for name in brought if name != witness]],
        metrics=f"{context.graph.name}.{node.name}" if df.isStreaming else False,
    )
    back = [column(f"__s{at}").alias(name) for at, name in enumerate(names)]
    new = [column(name) for name in brought]
    return joined.select(*back, *new, column(witness).isNotNull().alias(FOUND)), F.col(FOUND)


def _no_match(node: Lookup) -> Column:
    shown_keys: list[Column] = []
    for left in node.on:
        shown_keys += [F.lit(f"{', ' if shown_keys else ''}{left} = "), shown(column(left))]
    return F.concat(F.lit(f"not in {node.master.rstrip('/').rpartition('/')[2]}: "), *shown_keys)
