"""Activities: checked when built, the same from YAML and from Python."""

from __future__ import annotations

import pytest

from millstream.errors import FlowInvalid, InputError
from millstream.flow import (
    Aggregate,
    Derive,
    Domain,
    Enrich,
    Files,
    Graph,
    NotNull,
    Replicate,
    Route,
    Select,
    Staging,
    Table,
)

FILE = """
flow: sales
warehouse: http://127.0.0.1:1
nodes:
  - source: staging
    stream: orders
  - not_null: order_id
  - derive: {amount: quantity * price, on: no}
  - enrich: masters/products
    on: {product: product_id}
    columns: [name]
    how: left
  - route: {big: amount > 100}
    otherwise: small
    name: size
  - target: big_orders
    after: size.big
  - aggregate: {total: sum(amount)}
    by: [product]
    after: size.small
  - target: small_orders
    mode: aggregate
    key: product
    aggregates: {total: sum(total)}
"""

NODES = [
    Staging(stream="orders"),
    NotNull(columns="order_id"),
    Derive(columns={"amount": "quantity * price", "on": "no"}),
    Enrich(master="masters/products", on={"product": "product_id"}, columns=["name"], how="left"),
    Route(name="size", branches={"big": "amount > 100"}, otherwise="small"),
    Table(table="big_orders", after="size.big"),
    Aggregate(columns={"total": "sum(amount)"}, by="product", after="size.small"),
    Table(table="small_orders", mode="aggregate", key="product", aggregates={"total": "sum(total)"}),
]


def test_yaml_and_python_give_the_same_graph():
    assert Graph.parse(FILE) == Graph.build("sales", NODES, warehouse="http://127.0.0.1:1")


def test_nodes_are_data():
    one = Select(condition="a > 1")
    assert one == Select(condition="a > 1") != Select(condition="a > 2")
    assert "a > 1" in repr(one)
    with pytest.raises(AttributeError):
        one.condition = "b"
    assert NotNull(columns="a") == NotNull(columns=["a"])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Select(condition=" "), "must be a text"),
        (lambda: NotNull(columns=[]), "column or a list"),
        (lambda: NotNull(columns=["a", "a"]), "twice"),
        (lambda: Domain(column="a"), "exactly one of"),
        (lambda: Domain(column="a", matches="["), "regular expression"),
        (lambda: Domain(column="a", values=[1], low=2), "exactly one of"),
        (lambda: Enrich(master="m", on="a", memory="much"), "no size"),
        (lambda: Enrich(master="m", on="a", how="outer"), "one of inner, left"),
        (lambda: Enrich(master="m", on="a", algorithm="quick"), "must be one of"),
        (lambda: Replicate(branches=["a"]), "at least two"),
        (lambda: Route(branches={"a": "x"}, otherwise="a"), "has a condition"),
        (lambda: Table(table="drop table"), "no name of a table"),
        (lambda: Table(table="t", mode="upsert"), "needs a key"),
        (lambda: Table(table="t", mode="aggregate", key="k"), "needs aggregates"),
        (lambda: Table(table="t", key="k"), "for the modes"),
        (lambda: Files(path="x", format="csv"), "need columns"),
        (lambda: Staging(stream="a b"), "must be a name"),
        (lambda: Select(condition="a", name="1x"), "must be a name"),
    ],
)
def test_options_are_checked_when_built(make, said):
    with pytest.raises(InputError, match=said):
        make()


def test_variables_of_the_environment(monkeypatch):
    text = "flow: f\nnodes:\n  - source: files\n    path: ${HERE}/x\n  - target: ${NAME:-facts}\n"
    monkeypatch.setenv("HERE", "/data")
    graph = Graph.parse(text)
    assert graph.source.path == "/data/x"
    assert graph.targets[0].table == "facts"
    monkeypatch.delenv("HERE")
    with pytest.raises(FlowInvalid, match=r"flow:4: the environment has no variable HERE"):
        Graph.parse(text)


def test_python_flows_report_all_mistakes_too():
    with pytest.raises(FlowInvalid) as caught:
        Graph.build("f", [Select(condition="a"), Select(condition="b", after="nowhere"), Table(table="t")])
    said = caught.value.message
    assert "the flow has no source" in said
    assert "'nowhere', which is not there" in said
    assert "no row reaches 't'" in said
