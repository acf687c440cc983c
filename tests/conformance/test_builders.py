"""Builders that meet, die or are fed badly leave the version that was there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from conformance.test_bad_input import ROWS, TABLE, fingerprint, refused
from millstream import errors
from millstream.master import Build, Master, build_local, write_part


@pytest.fixture
def path(tmp_path: Path) -> Path:
    build_local(TABLE, tmp_path / "m", key="id", segment_bytes=1_024)
    return tmp_path / "m"


def test_two_at_once(path: Path) -> None:
    with Build.begin(path, TABLE.schema, key="id") as first:
        before = fingerprint(path)
        with pytest.raises(errors.BuildConflict, match=re.escape(str(path))) as caught:
            build_local(TABLE, path, key="id")
        assert caught.value.retryable
        assert fingerprint(path) == before
        first.abort()
    assert Master.open(path).version == 1
    assert build_local(TABLE, path, key="id").version == 2


def test_a_build_that_dies_leaves_the_old_version(path: Path) -> None:
    before = fingerprint(path)

    def dying() -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0].slice(0, 100)
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"), Build.begin(path, TABLE.schema, key="id") as build:
        write_part(build.spec, dying(), 0)
    assert fingerprint(path) == before
    assert Master.open(path).version == 1


def test_rows_out_of_order(path: Path) -> None:
    backwards = TABLE.take(pa.array(np.arange(ROWS)[::-1])).combine_chunks().to_batches()
    with (
        refused(errors.InputError, "sorted", path=path),
        Build.begin(path, TABLE.schema, key="id") as build,
    ):
        write_part(build.spec, backwards, 0)
