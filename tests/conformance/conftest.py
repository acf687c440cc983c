"""Masters for the conformance suite: each is built once, with segments so small that even little tables have many."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from millstream.master import Master, build_local

SEGMENT_BYTES = 2_048

Masters = Callable[..., Master]


@pytest.fixture(scope="session")
def masters(tmp_path_factory: pytest.TempPathFactory) -> Masters:
    """A function that gives the master of that name, and builds it from the table when it is asked for first."""
    built: dict[str, Master] = {}

    def master(
        name: str,
        table: pa.Table,
        *,
        key: str | list[str],
        segment_bytes: int = SEGMENT_BYTES,
        frequency: str | None = None,
    ) -> Master:
        if name not in built:
            path = tmp_path_factory.mktemp("master") / "m"
            layout = "key" if frequency is None else "frequency"
            built[name] = build_local(
                table, path, key=key, layout=layout, frequency=frequency, segment_bytes=segment_bytes
            )
        return built[name]

    return master
