"""Counts of a batch: from what arrives at the ends, and what is rejected on the way, everything else follows."""

from __future__ import annotations

import pytest

from millstream.errors import MillstreamError
from millstream.flow import Aggregate, Frame, Graph, ParquetFiles, Replicate, Route, Select
from millstream.flow.counts import Tally, activities, branches, ledger_counts
from millstream.flow.reconcile import Account, Intake, differences

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
