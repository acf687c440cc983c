"""Activities that look at all rows of a micro-batch together, or give another number of rows than they got."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ...flow.memory import CHANGED, NEW, SAME
from ...flow.nodes import Aggregate, DetectUpdates, Difference, Enrich, Node
from ...master import Master
from ..types import column
from .context import Context
from .remembering import compared
from .rows import apply
from .state import alive, key_hash, no_key, reject, unmarked, user_columns

_KEPT = 3  # snapshots: the one before the present batch is needed if that is repeated


def is_set(node: Node, context: Context) -> bool:
    """Whether an activity cannot work on one row at a time, or may give several rows for one."""
    if isinstance(node, Aggregate | Difference | DetectUpdates):
        return True
    return isinstance(node, Enrich) and Master.open(context.graph.path(node.master)).statistics.max_key_rows > 1


def apply_set(node: Node, df: DataFrame, context: Context, *, batch: int, state: Path | None) -> DataFrame:
    """The rows behind such an activity, marked, from the rows of a micro-batch in front of it."""
    match node:
        case Aggregate():
            return _aggregate(node, df)
        case Difference():
            return _difference(node, df, context, batch=batch, state=state)
        case DetectUpdates():
            return _updates(node, df, context, batch=batch)
    return apply(node, unmarked(df), context)


def _aggregate(node: Aggregate, df: DataFrame) -> DataFrame:
    made = [F.expr(text).alias(name) for name, text in node.columns.items()]
    groups = df.groupBy(*[column(name) for name in node.by]).agg(*made, F.min("_captured").alias("_captured"))
    nowhere = {"_source": F.lit(None).cast("string"), "_sequence": F.lit(None).cast("bigint")}
    return unmarked(groups.withColumns(nowhere))


def _difference(node: Difference, df: DataFrame, context: Context, *, batch: int, state: Path | None) -> DataFrame:
    """
    ```
     new   1 a   2 b        4 d        full outer join    1 a = 1 a  (leaves the flow)
     old   1 a   2 x   3 c             on the key         2 b  update    3 c  delete    4 d  insert
    ```
    """
    names = user_columns(df)
    twice = "__place"
    by = Window.partitionBy(*[column(name) for name in node.key]).orderBy("_sequence", key_hash(df, names, salt=1))
    marked = unmarked(df).withColumn(twice, F.row_number().over(by))
    cases = [(F.col(twice) > 1, F.lit(f"the snapshot has another row with this {', '.join(node.key)}"))]
    marked = reject(marked, context.number(node), cases, keep=True).drop(twice)
    if state is None:
        return marked.withColumn(node.change, F.lit("insert"))
    rejected = marked.where(~alive()).withColumn(node.change, F.lit(None).cast("string"))
    new = marked.where(alive()).select(*[column(name) for name in (*names, "_source", "_sequence", "_captured")])
    old = _snapshot(df, names, state / node.name, batch, new)
    left = new.select(F.struct("*").alias("n"))
    right = old.select(F.struct(*[column(name) for name in names]).alias("o"))
    equal = F.lit(True)
    for name in node.key:
        equal = equal & F.col("n").getField(name).eqNullSafe(F.col("o").getField(name))
    values = F.struct(*[F.col("n").getField(name).alias(name) for name in names])
    change = (
        F.when(F.col("o").isNull(), "insert").when(F.col("n").isNull(), "delete").when(values != F.col("o"), "update")
    )
    both = left.join(right, equal, "full_outer").withColumn(node.change, change).where(F.col(node.change).isNotNull())
    deleted = F.col(node.change) == "delete"
    columns = [
        F.when(deleted, F.col("o").getField(name)).otherwise(F.col("n").getField(name)).alias(name) for name in names
    ]
    system = [
        F.col("n._source").alias("_source"),
        F.col("n._sequence").alias("_sequence"),
        F.coalesce(F.col("n._captured"), F.current_timestamp()).alias("_captured"),
    ]
    return unmarked(both.select(*columns, column(node.change), *system)).unionByName(rejected)


def _snapshot(df: DataFrame, names: list[str], folder: Path, batch: int, new: DataFrame) -> DataFrame:
    """The snapshot before this batch, after this one was written down in its place."""
    session = df.sparkSession
    numbers = sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())
    earlier = [number for number in numbers if number < batch]
    present = folder / str(batch)
    if not present.exists():
        temporary = folder / f"{batch}.tmp"
        new.select(*[column(name) for name in names]).write.mode("overwrite").parquet(str(temporary))
        temporary.rename(present)
        for number in earlier[: -(_KEPT - 1)]:
            shutil.rmtree(folder / str(number), ignore_errors=True)
    schema = StructType([field for field in df.schema.fields if field.name in names])
    if not earlier:
        return session.createDataFrame([], schema)
    return session.read.schema(schema).parquet(str(folder / str(earlier[-1])))


def _updates(node: DetectUpdates, df: DataFrame, context: Context, *, batch: int) -> DataFrame:
    """Rows of a key in their order: each is compared with the one before it, the first with what is remembered."""
    keys = list(node.key)
    names = list(node.columns or [name for name in user_columns(df) if name not in keys])
    marked = reject(unmarked(df), context.number(node), no_key(df, keys), keep=node.rejects == "keep")
    if context.memory is None:
        return marked.withColumn(node.change, F.lit(None).cast("string"))
    high, low, content = (key_hash(df, of, salt=salt) for of, salt in ((keys, 11), (keys, 7919), (names, 3)))
    hashed = marked.select("*", high.alias("__h"), low.alias("__l"), content.alias("__c"))
    by = Window.partitionBy("__h", "__l", alive()).orderBy("_source", "_sequence", "__c")
    whole = by.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    placed = hashed.select(
        *[column(name) for name in marked.columns],
        (F.lag("__c").over(by) == F.col("__c")).alias("__repeat"),
        F.when(alive(), F.row_number().over(by)).otherwise(0).alias("__place"),
        F.col("__h").alias("__high"),
        F.col("__l").alias("__low"),
        F.col("__c").alias("__first"),
        F.last("__c").over(whole).alias("__last"),
    )
    answered = compared(placed, context.memory, node.name, batch)
    later = F.when(F.col("__repeat"), F.lit(SAME)).otherwise(F.lit(CHANGED))
    state = F.when(F.col("__place") == 1, F.col("__state")).otherwise(later)
    changed = answered.withColumn(
        node.change, F.when(state == NEW, F.lit("insert")).when(state == CHANGED, F.lit("update"))
    ).drop("__repeat", "__place", "__high", "__low", "__first", "__last", "__state")
    cases = [(F.col(f"`{node.change}`").isNull(), F.lit("nothing has changed"))]
    return reject(changed, context.number(node), cases, keep=node.rejects == "keep")
