"""The manifest: what is written is what is read, and what is not sound is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import CorruptMaster, FormatTooNew, FormatTooOld, MasterNotFound, MillstreamError, NotAMaster
from millstream.master import Master, build_local
from millstream.master.files import Store
from millstream.master.manifest import FORMAT, Manifest, Part, Statistics, load, name_of, parse, versions

numbers = st.integers(0, 2**63 - 1)
sums = st.integers(0, 2**64 - 1)
names = st.text("abcÄ日😀 \"'\\/_\n", min_size=1, max_size=12)
parts = st.builds(
    Part,
    number=numbers,
    file=names,
    bytes=numbers,
    rows=numbers,
    segments=numbers,
    index=names,
    index_checksum=sums,
    filter=st.none() | names,
    filter_bytes=numbers,
    filter_checksum=sums,
)
columns = st.lists(names, unique=True, min_size=1, max_size=4).map(
    lambda found: pa.schema([pa.field(name, pa.list_(pa.string()), metadata={"of": name}) for name in found])
)
manifests = st.builds(
    Manifest,
    version=st.integers(1, 10**9),
    created=st.just("2024-02-29T12:00:00+00:00"),
    key=st.lists(names, min_size=1, max_size=3).map(tuple),
    layout=st.sampled_from(["key", "frequency"]),
    segment_bytes=numbers,
    schema=columns,
    statistics=st.builds(
        Statistics, rows=numbers, bytes=numbers, heaviest_keys=st.lists(st.tuples(st.text(), numbers)).map(tuple)
    ),
    parts=st.lists(parts, max_size=3).map(tuple),
    null_parts=st.lists(parts, max_size=2).map(tuple),
    dense_parts=st.lists(parts, max_size=2).map(tuple),
)


@settings(max_examples=60, deadline=None)
@given(manifest=manifests)
def test_round_trip(manifest: Manifest) -> None:
    again = parse(manifest.to_json(), "here")
    assert again == manifest
    assert again.schema.equals(manifest.schema, check_metadata=True)
    assert again.to_json() == manifest.to_json()
    assert len(again.files()) == sum(
        3 if part.filter else 2 for part in (*again.parts, *again.null_parts, *again.dense_parts)
    )


@settings(max_examples=150, deadline=None)
@given(manifest=manifests, data=st.data())
def test_damage_is_refused_by_name(manifest: Manifest, data: st.DataObject) -> None:
    content = manifest.to_json()
    at = data.draw(st.integers(0, len(content) - 1))
    damaged = data.draw(
        st.sampled_from(
            [
                content[:at],
                content[:at] + bytes([content[at] ^ 1 << data.draw(st.integers(0, 7))]) + content[at + 1 :],
                content[:at] + data.draw(st.binary(min_size=1, max_size=8)) + content[at:],
                content[at:],
            ]
        )
    )
    found: Manifest | MillstreamError
    try:
        found = parse(damaged, "where it lies")
    except (CorruptMaster, FormatTooNew, FormatTooOld) as error:
        found = error
    assert found == manifest or "where it lies" in str(found), "only white space may change"


@pytest.mark.parametrize(
    "content",
    [
        *("", "null", "1", "[]", "{}", '"text"', "\ud800", "{" * 50, '{"format": null}', '{"format": []}'),
        *('{"format": 1e400, "master": {}}', '{"format": NaN}', '{"format": "one"}', '{"format": -1, "master": 3}'),
        *("[" * 100_000, '{"a":' * 100_000),
    ],
    ids=lambda content: content[:30] or "empty",
)
def test_json_that_is_no_manifest(content: str) -> None:
    with pytest.raises(CorruptMaster, match="here"):
        parse(content.encode("utf-8", "surrogatepass"), "here")


def test_newer_format_wins_over_all_other_complaints() -> None:
    with pytest.raises(FormatTooNew, match=f"here has format {FORMAT + 1}"):
        parse(json.dumps({"format": FORMAT + 1, "anything": "else"}).encode(), "here")


def test_versions_are_the_names_of_whole_numbers(tmp_path: Path) -> None:
    table = pa.table({"k": [1]})
    for _ in range(3):
        build_local(table, tmp_path / "m", key="k")
    for odd in ("README", "x.json", "0000000009.json.123.tmp", "-1.json", "1.5.json", "²³.json", ".json"):
        (tmp_path / "m" / "manifests" / odd).write_text("{}")
    store = Store(tmp_path / "m")
    assert versions(store) == [1, 2, 3]
    assert load(store).version == 3
    assert load(store, 2).version == 2
    assert Master.latest_version(tmp_path / "m") == 3
    with pytest.raises(MasterNotFound, match=r"no version 4; it has 1, 2, 3"):
        load(store, 4)


def test_latest_version_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(MasterNotFound):
        Master.latest_version(tmp_path / "nowhere")
    with pytest.raises(NotAMaster):
        Master.latest_version(tmp_path)


@pytest.mark.parametrize("spoil", ["damage", "newer", "older"])
@pytest.mark.parametrize("which", [1, 2])
def test_building_over_a_manifest_that_cannot_be_read(which: int, spoil: str, tmp_path: Path) -> None:
    """`build the master again` is what the error says, so that must work; or fail and leave all as it was."""
    table = pa.table({"k": np.arange(500), "v": np.arange(500)})
    for _ in range(2):
        build_local(table, tmp_path / "m", key="k")
    file = tmp_path / "m" / name_of(which)
    spoilt = {"damage": file.read_bytes()[:-200], "newer": b'{"format": 3}', "older": b'{"format": 1}'}
    file.write_bytes(spoilt[spoil])
    before = file.read_bytes()
    try:
        built = build_local(table, tmp_path / "m", key="k")
    except MillstreamError:
        assert Master.open(tmp_path / "m", version=3 - which).verify() > 0
        assert not (tmp_path / "m" / name_of(3)).exists(), "a build that fails leaves no version"
    else:
        assert built.version == 3
        assert Master.open(tmp_path / "m").verify() > 0
    assert spoil == "damage" or file.read_bytes() == before
