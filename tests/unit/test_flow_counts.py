"""Counts of a batch: from what arrives at the ends, and what is rejected on the way, everything else follows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millstream.cli.reconcile import reconcile
from millstream.errors import MillstreamError
from millstream.flow import Aggregate, Frame, Graph, ParquetFiles, Replicate, Route, Select
from millstream.flow.counts import Tally, activities, branches, ledger_counts
from millstream.flow.reconcile import Account, Intake, differences, passages
from millstream.warehouse import Server, TableSpec, connect

GRAPH = Graph.build(
    "f",
    [
        Frame(name="source"),
        Select(name="sound", condition="a"),
        Replicate(name="both", branches=["all", "some"]),
        Aggregate(name="groups", columns={"n": "count(*)"}, by="k", after="both.all"),
        Select(name="having", condition="n"),
        ParquetFiles(name="view", path="v"),
        Route(name="split", branches={"x": "x"}, otherwise="y", after="both.some"),
        ParquetFiles(name="xs", path="x", after="split.x"),
        ParquetFiles(name="ys", path="y", after="split.y"),
    ],
)
TALLY = Tally(
    rows=100,
    arrived={"groups": 90, "view": 18, "xs": 70, "ys": 20},
    behind={"groups": 20},
    rejected={"sound": 10, "having": 2},
)


def test_counts_of_activities():
    found = activities(GRAPH, TALLY, shared=1.0)
    seen = {name: (one.rows_in, one.rows_out, one.rejected) for name, one in found.items()}
    assert seen == {
        "source": (100, 100, 0),
        "sound": (100, 90, 10),
        "both": (90, 90, 0),
        "groups": (90, 20, 0),
        "having": (20, 18, 2),
        "view": (18, 18, 0),
        "split": (90, 90, 0),
        "xs": (70, 70, 0),
        "ys": (20, 20, 0),
    }
    assert sum(one.seconds for one in found.values()) == pytest.approx(1.0)


def test_accounts_of_targets():
    view, xs, _ = branches(GRAPH, TALLY)
    assert (view.loaded, view.rejected, view.elsewhere, view.merged) == (18, 12, 0, 70)
    assert (xs.loaded, xs.rejected, xs.elsewhere, xs.merged) == (70, 10, 20, 0)
    counts = ledger_counts(view)
    assert counts["in"] == counts["loaded"] + counts["rejected"] == 30
    assert counts["sent"] == 100


def test_a_missing_row_is_noticed():
    TALLY_SHORT = Tally(101, dict(TALLY.arrived), dict(TALLY.behind), dict(TALLY.rejected))
    with pytest.raises(MillstreamError, match="unaccounted"):
        branches(GRAPH, TALLY_SHORT)


def test_differences_are_said():
    sound = Account("f", "t", 3, sent=100, loaded=90, rejected=10, elsewhere=0, merged=0, written=90)
    assert differences([sound], [Intake("s", "f", 100, 100)]) == []
    assert differences([sound], [Intake("s", "f", 120, 80)]) == []  # staging hears of it a batch later
    assert "consumed" in differences([sound], [Intake("s", "f", 120, 120)])[0]
    assert "consumed" in differences([sound], [Intake("s", "f", 90, 80)])[0]
    lost = Account("f", "t", 3, sent=100, loaded=90, rejected=10, elsewhere=0, merged=0, written=89)
    assert "89 rows were written" in differences([lost], [])[0]


def test_rows_between_the_activities_of_a_flow_with_queues(tmp_path):
    """What was sent to an activity and not taken waits; more taken than sent is wrong, and so is less at the end."""
    columns = ["flow", "activity", "kind", "rows_in", "rows_out", "rejected", "after"]
    lines = [
        ("f", "in", "source", 10, 10, 0, None),
        ("f", "good", "select", 10, 8, 2, "in"),
        ("f", "split", "route", 8, 8, 0, "good"),
        ("f", "a", "target", 5, 5, 0, "split.a"),
        ("f", "b", "target", 2, 2, 0, "split.b"),
        ("g", "in", "source", 99, 99, 0, None),
    ]
    found = [Account("f.a", "t", 1, 5, 5, 0, 0, 0, 5)]
    with Server(tmp_path / "warehouse.duckdb") as server, connect(server.url) as client:
        data = pa.table(dict(zip(columns, zip(*lines, strict=True), strict=True)))
        client.create(TableSpec("flow_activities", data.schema))
        for at, line in enumerate(lines):  # each loads its own; those of g are one query
            if line[1] == "split":
                assert [(one.activity, one.waiting) for one in passages(client)][-1] == ("behind good", 8)
            client.load(
                "flow_activities", flow=f"f.{line[1]}" if line[0] == "f" else "g", batch=0, data=data.slice(at, 1)
            )
        passed = passages(client)
        assert [(one.activity, one.waiting) for one in passed] == [
            ("in", 0),
            ("good", 0),
            ("split", 0),
            ("a", 1),
            ("b", 1),
        ]
        assert differences(found, [], passed) == []
        assert len(differences(found, [], passed, drained=True)) == 2
        more = pa.table(
            {name: [value] for name, value in zip(columns, ("f", "good", "select", 3, 3, 0, "in"), strict=True)}
        )
        client.load("flow_activities", flow="f.good", batch=1, data=more)
        assert differences(found, [], passages(client)) == [
            "flow f, activity good: it has taken 13 rows, but 10 were sent to it"
        ]


def test_no_batch_yet(tmp_path, capsys):
    with Server(tmp_path / "warehouse.duckdb") as server:
        reconcile(server.url, flow="f", may_be_empty=True)
        assert capsys.readouterr().out == "no row has come yet\n"
        with pytest.raises(MillstreamError, match="no batches of flow 'f'"):
            reconcile(server.url, flow="f")
