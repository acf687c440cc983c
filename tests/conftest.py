"""How tests are spread over processes: those that start Spark share one, and are the first there."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# The longest group begins first: what it needs alone decides how long all tests take.
GROUPS = {
    "tests/spark/": "spark",
    "tests/docs/test_examples.py::test_examples_run": "spark",
    "tests/docs/test_examples.py::test_from_nothing_to_a_fresh_table": "spark",
    "tests/faults/test_memory_from_outside.py": "memory",  # measures while it runs
}


class Groups(LoadScopeScheduling):
    """Tests of a group run in one process, one after the other; all others wherever there is time."""

    def _split_scope(self, nodeid: str) -> str:
        return next((group for begin, group in GROUPS.items() if nodeid.startswith(begin)), nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    return Groups(config, log)
