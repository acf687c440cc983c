"""`on` as column, list or mapping, and `columns` in any selection and order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from conformance.conftest import Masters
from driving import run_join
from millstream import joins
from oracle import On, assert_same_bag, expected_join

every_algorithm = pytest.mark.parametrize("algorithm", joins.ALGORITHMS)

MASTER = pa.table(
    {
        "color": [("red", "green", "blue", None)[i % 4] for i in range(120)],
        "id": np.arange(120) // 2,
        "weight": np.arange(120) / 8,
        "tags": [[str(i)] * (i % 3) for i in range(120)],
    }
)
STREAM = pa.table(
    {
        "position": np.arange(200),
        "product": pa.array([None if i % 19 == 0 else i * 7 % 80 for i in range(200)]),
        "paint": [("red", "blue", "black", None)[i % 4] for i in range(200)],
    }
)


def check(algorithm: str, masters: Masters, key: list[str], **options: object) -> None:
    master = masters(f"columns {key}", MASTER, key=key)
    result = run_join(algorithm, master, STREAM, **options)
    assert_same_bag(result, expected_join(STREAM, MASTER, **options))


@every_algorithm
class TestOn:
    def test_mapping(self, algorithm: str, masters: Masters) -> None:
        check(algorithm, masters, ["id"], on={"product": "id"}, how="left")

    @pytest.mark.parametrize("on", [{"product": "id", "paint": "color"}, {"paint": "color", "product": "id"}])
    def test_mapping_of_several_columns_in_any_order(self, algorithm: str, on: On, masters: Masters) -> None:
        check(algorithm, masters, ["id", "color"], on=on, how="left")

    @pytest.mark.parametrize("on", ["id", ["id"], ("id",)])
    def test_column_or_list(self, algorithm: str, on: On, masters: Masters) -> None:
        stream = STREAM.rename_columns(["position", "id", "paint"])
        master = masters("columns ['id']", MASTER, key=["id"])
        result = run_join(algorithm, master, stream, on=on, how="left")
        assert_same_bag(result, expected_join(stream, MASTER, on=on, how="left"))

    def test_list_in_another_order_than_the_key(self, algorithm: str, masters: Masters) -> None:
        stream = STREAM.rename_columns(["position", "id", "color"])
        master = masters("columns ['id', 'color']", MASTER, key=["id", "color"])
        for on in (["id", "color"], ["color", "id"]):
            result = run_join(algorithm, master, stream, on=on, how="left")
            assert_same_bag(result, expected_join(stream, MASTER, on=on, how="left"))


@every_algorithm
class TestColumns:
    @pytest.mark.parametrize(
        "columns", [["weight"], ["tags", "color"], ["tags", "weight", "color"], ["id"], ["weight", "id"], []]
    )
    @pytest.mark.parametrize("how", ["inner", "left"])
    def test_selection(self, algorithm: str, how: str, columns: Sequence[str], masters: Masters) -> None:
        check(algorithm, masters, ["id"], on={"product": "id"}, how=how, columns=columns)

    def test_master_of_keys_alone(self, algorithm: str, masters: Masters) -> None:
        table = MASTER.select(["id"])
        master = masters("keys alone", table, key="id")
        for how in joins.HOWS:
            result = run_join(algorithm, master, STREAM, on={"product": "id"}, how=how)
            assert_same_bag(result, expected_join(STREAM, table, on={"product": "id"}, how=how))

    def test_stream_of_keys_alone(self, algorithm: str, masters: Masters) -> None:
        stream = STREAM.select(["product"])
        master = masters("columns ['id']", MASTER, key=["id"])
        for how in joins.HOWS:
            result = run_join(algorithm, master, stream, on={"product": "id"}, how=how)
            assert_same_bag(result, expected_join(stream, MASTER, on={"product": "id"}, how=how))

    def test_a_clash_can_be_chosen_away(self, algorithm: str, masters: Masters) -> None:
        stream = STREAM.rename_columns(["weight", "id", "paint"])
        master = masters("columns ['id']", MASTER, key=["id"])
        result = run_join(algorithm, master, stream, on="id", how="left", columns=["color"])
        assert_same_bag(result, expected_join(stream, MASTER, on="id", how="left", columns=["color"]))

    @pytest.mark.parametrize("how", ["left_semi", "left_anti"])
    def test_no_clash_where_no_master_columns_come_out(self, algorithm: str, how: str, masters: Masters) -> None:
        stream = STREAM.rename_columns(["weight", "id", "color"])
        master = masters("columns ['id']", MASTER, key=["id"])
        result = run_join(algorithm, master, stream, on="id", how=how)
        assert_same_bag(result, expected_join(stream, MASTER, on="id", how=how))


def test_default_is_all_but_the_key(masters: Masters) -> None:
    master = masters("columns ['id']", MASTER, key=["id"])
    schema = joins.output_schema(STREAM.schema, master, on={"product": "id"}, how="left", columns=None)
    assert schema.names == ["position", "product", "paint", "color", "weight", "tags"]
    for how in ("left_semi", "left_anti"):
        schema = joins.output_schema(STREAM.schema, master, on={"product": "id"}, how=how, columns=None)
        assert schema.names == STREAM.schema.names


def test_columns_of_the_master_can_be_null_in_a_left_join(masters: Masters) -> None:
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int32(), nullable=False)])
    table = pa.table([[1], [2]], schema=strict)
    master = masters("not nullable", table, key="id")
    stream = pa.schema([("id", pa.int64())])
    assert joins.output_schema(stream, master, on="id", how="left", columns=None).field("n").nullable
