"""Rows collected from many pages against pyarrow's `take`, for every Arrow type that can be stored, nested too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.errors import UnsupportedType
from millstream.kernels import flat, segments
from millstream.kernels.collector import Collector, collectable
from millstream.kernels.layout import Layout
from millstream.kernels.pages import PageTable, aligned

FIXED = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms")),
    *(pa.time64("us"), pa.time64("ns"), pa.timestamp("s"), pa.timestamp("ms", tz="UTC"), pa.timestamp("us")),
    *(pa.timestamp("ns", tz="Europe/Berlin"), pa.duration("s"), pa.duration("ns"), pa.month_day_nano_interval()),
    *(pa.decimal32(5, 1), pa.decimal64(12, 3), pa.decimal128(30, 2), pa.decimal256(60, 5)),
    *(pa.binary(1), pa.binary(3), pa.binary(8), pa.binary(16), pa.binary(21)),
]
TEXTS = ["", "a", "1234567", "12345678", "é" * 30, "long " * 20]


def _pool(kind: pa.DataType) -> list[Any]:
    """Some values of a type, made from plain numbers, so that every type has them."""
    width = kind.bit_width // 8
    step = 86_400_000 if pa.types.is_date64(kind) else 1
    data = b"".join((i * step).to_bytes(width, "little") for i in (0, 1, 50, 99))
    return pa.Array.from_buffers(kind, 4, [None, pa.py_buffer(data)]).to_pylist()


LEAVES: dict[pa.DataType, list[Any]] = {
    **{kind: _pool(kind) for kind in FIXED},
    pa.bool_(): [True, False],
    pa.null(): [None],
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.binary(): [text.encode() for text in TEXTS],
    pa.large_binary(): [text.encode() for text in TEXTS],
}


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.builds(pa.list_, inner, st.integers(1, 3)),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda kinds: pa.struct([pa.field(f"f{i}", kind) for i, kind in enumerate(kinds)])
        ),
        st.builds(pa.map_, st.sampled_from([pa.int32(), pa.string()]), inner),
    )


types = st.recursive(st.sampled_from(list(LEAVES)), _nested, max_leaves=4)


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if kind in LEAVES:
        return st.none() | st.sampled_from(LEAVES[kind])
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    if pa.types.is_map(kind):
        key = st.integers(0, 9) if kind.key_type == pa.int32() else st.sampled_from(TEXTS)
        return st.none() | st.lists(st.tuples(key, values(kind.item_type)), max_size=3)
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
    return st.none() | st.lists(values(kind.value_type), min_size=size or 0, max_size=size or 3)


@st.composite
def batches(draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[pa.RecordBatch]:
    """Pages of one schema, some of them slices of a larger batch."""
    kinds = draw(st.lists(types, min_size=1, max_size=3))
    schema = pa.schema([(f"c{i}", kind) for i, kind in enumerate(kinds)])
    made = []
    for rows in draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)):
        columns = [
            pa.array(draw(st.lists(values(kind), min_size=rows, max_size=rows)), kind, size=rows) for kind in kinds
        ]
        start = draw(st.integers(0, rows))
        made.append(pa.RecordBatch.from_arrays(columns, schema=schema).slice(start, draw(st.integers(0, rows))))
    return made


def add_batch(pages: PageTable, batch: pa.RecordBatch) -> int:
    return pages.add(aligned(batch))


def add_message(pages: PageTable, batch: pa.RecordBatch) -> int:
    """As a segment of a master comes from disk: at any address, in one piece."""
    message = b"\0" * 3 + batch.serialize().to_pybytes()
    memory = np.frombuffer(message, dtype=np.uint8)
    page = pages.reserve(memory)
    start, length = memory.ctypes.data + 3, len(message) - 3
    rows = segments.map_segment(start, length, pages.addresses[page], pages.layout.buffers)
    assert rows == len(batch)
    return page


def collect(pages: PageTable, refs: list[int], schema: pa.Schema) -> pa.RecordBatch:
    plan = pages.measure(np.array(refs, dtype=np.int64), range(len(schema)))
    assert plan.retained <= plan.nbytes
    batch = pa.RecordBatch.from_arrays(plan.columns(), schema=schema)
    batch.validate(full=True)
    assert batch.get_total_buffer_size() <= plan.retained, "it takes no more than was announced"
    rows = pages.measure_page(np.array(refs, dtype=np.int64), range(len(schema)))
    assert rows.retained <= rows.nbytes
    page = pages.keep(rows)
    again = pages.measure(np.arange(len(refs), dtype=np.int64) + (page << 32), range(len(schema))).columns()
    assert pa.RecordBatch.from_arrays(again, schema=schema).equals(batch), "a page of them has the same rows"
    pages.release(page)
    return batch


@pytest.mark.parametrize("add", [add_batch, add_message])
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(made=batches(), data=st.data())
def test_any_rows_of_any_pages(
    add: Callable[[PageTable, pa.RecordBatch], int], made: list[pa.RecordBatch], data: st.DataObject
) -> None:
    schema = made[0].schema
    pages = PageTable(Layout.of(schema))
    spare = add(pages, made[0])
    numbers = [add(pages, batch) for batch in made]
    pages.release(spare)
    places = [(page, row) for page, batch in zip(numbers, made, strict=True) for row in range(len(batch))]
    assert len(pages) == len(made)
    chosen = data.draw(st.lists(st.none() | st.integers(0, len(places) - 1) if places else st.none(), max_size=40))
    refs = [-1 if i is None else places[i][0] << 32 | places[i][1] for i in chosen]
    expected = pa.Table.from_batches(made).combine_chunks().take(pa.array(chosen, pa.int64()))
    found = pa.Table.from_batches([collect(pages, refs, schema)])
    assert found.equals(expected), f"{found.to_pylist()}\nis not\n{expected.to_pylist()}"


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(made=batches())
def test_aligned_batches_are_the_same(made: list[pa.RecordBatch]) -> None:
    for batch in made:
        same = aligned(batch)
        same.validate(full=True)
        assert same.equals(batch)
        assert aligned(same) is same


def test_aligned_sees_offsets_below() -> None:
    """Arrays that start at 0 over children that do not."""
    numbers = pa.array(range(20)).slice(5)
    texts = pa.array([str(i) * i for i in range(20)]).slice(5)
    struct = pa.StructArray.from_arrays([numbers, texts], names=["n", "t"])
    lists = pa.ListArray.from_arrays(pa.array([1, 3, 3, 10], pa.int32()), struct)
    fixed = pa.FixedSizeListArray.from_arrays(numbers, 5)
    maps = pa.MapArray.from_arrays(pa.array([0, 2, 4, 15], pa.int32()), texts, numbers)
    batch = pa.RecordBatch.from_arrays([lists, fixed, maps], names=["l", "f", "m"])
    pages = PageTable(Layout.of(batch.schema))
    page = pages.add(aligned(batch))
    found = collect(pages, [page << 32 | 2, -1, page << 32, page << 32 | 2], batch.schema)
    assert pa.Table.from_batches([found]).equals(pa.Table.from_batches([batch]).take(pa.array([2, None, 0, 2])))


def test_nulls_over_children_that_have_values() -> None:
    """What lies under a NULL does not matter, but offsets still count."""
    inner = pa.array(["hidden", "a", "bc", "hidden too"])
    mask = pa.array([True, False, False, True])
    struct = pa.StructArray.from_arrays([inner], names=["t"], mask=mask)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1, 3, 4], pa.int32()), inner, mask=mask)
    batch = pa.RecordBatch.from_arrays([struct, lists], names=["s", "l"])
    for add in (add_batch, add_message):
        pages = PageTable(Layout.of(batch.schema))
        page = add(pages, batch)
        found = collect(pages, [page << 32 | row for row in (3, 2, 0, 1)], batch.schema)
        assert found.to_pylist() == [batch.to_pylist()[row] for row in (3, 2, 0, 1)]


def test_children_that_cannot_be_null_under_a_row_that_is_not_there() -> None:
    item = pa.field("item", pa.int32(), nullable=False)
    schema = pa.schema([("f", pa.list_(item, 2)), ("s", pa.struct([item])), ("l", pa.list_(item))])
    batch = pa.RecordBatch.from_pylist([{"f": [1, 2], "s": {"item": 3}, "l": [4]}], schema=schema)
    pages = PageTable(Layout.of(schema))
    page = pages.add(batch)
    found = collect(pages, [-1, page << 32], schema)
    assert found.to_pylist() == [{"f": None, "s": None, "l": None}, *batch.to_pylist()]


def test_values_of_every_length() -> None:
    """Short values are copied by words that may overlap; none may touch its neighbour."""
    texts = [bytes([65 + i % 26]) * i for i in range(140)]
    batch = pa.RecordBatch.from_pydict({"b": texts})
    pages = PageTable(Layout.of(batch.schema))
    page = add_message(pages, batch)
    order = np.random.default_rng(0).permutation(len(texts)).tolist()
    found = collect(pages, [page << 32 | i for i in order], batch.schema)
    assert found.column("b").to_pylist() == [texts[i] for i in order]


def test_pages_are_used_again() -> None:
    batch = pa.RecordBatch.from_pydict({"k": [1, 2, 3], "t": ["a", None, "c"]})
    pages = PageTable(Layout.of(batch.schema))
    numbers = [pages.add(batch) for _ in range(50)]
    assert numbers == list(range(50))
    for page in numbers[::2]:
        pages.release(page)
    assert len(pages) == 25
    rows = pages.measure_page(np.arange(3) + (1 << 32), [1])
    assert sorted(pages.keep(rows) for _ in range(25)) == numbers[::2]
    assert pages.add(batch) == 50
    found = pages.measure(np.array([48 << 32 | 2, 49 << 32 | 1, -1, 0]), [1]).columns()
    assert found[0].to_pylist() == ["c", None, None, "a"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.dictionary(pa.int8(), pa.string()),
        pa.string_view(),
        pa.list_view(pa.int8()),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.uuid(),
        pa.list_(pa.string_view()),
        pa.struct([("x", pa.dictionary(pa.int8(), pa.string()))]),
    ],
    ids=str,
)
def test_types_without_a_plain_layout_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedType, match="'odd'"):
        Layout.of(pa.schema([("fine", pa.int8()), ("odd", kind)]))


def test_thousands_of_rows() -> None:
    """More than are copied at a time, from pages of both kinds."""
    rng, n = np.random.default_rng(1), 3000
    texts = [None if i % 7 == 0 else f"name {i}" * (i % 5) for i in range(n)]
    columns = {
        "k": pa.array(range(n)),
        "t": pa.array(texts),
        "b": pa.array([None if i % 11 == 0 else i % 3 == 0 for i in range(n)]),
        "l": pa.array(texts[::-1], pa.large_string()),
        "d": pa.array([None if i % 5 == 0 else i for i in range(n)], pa.int32()).cast(pa.decimal128(12, 2)),
        "u": pa.array([f"{i:x}" for i in range(n)]),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    pages = PageTable(Layout.of(batch.schema))
    rows = rng.integers(0, n, 5000)
    for page in (pages.add(batch), add_message(pages, batch)):
        found = collect(pages, ((page << 32) + rows).tolist(), batch.schema)
        assert found.equals(batch.take(pa.array(rows)))
        kept = pages.keep(pages.measure_page((page << 32) + np.arange(n), range(6)))
        assert collect(pages, ((kept << 32) + rows).tolist(), batch.schema).equals(found)


def test_kept_rows_whose_texts_are_beyond_their_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept column by column, where the offsets of each column begin anew."""
    batch = pa.RecordBatch.from_pydict({"k": [1, 2, 3], "a": ["x", None, "yy"], "b": ["", "zzz", "w"]})
    pages = PageTable(Layout.of(batch.schema))
    refs = np.array([2, 0, -1, 1]) + (pages.add(batch) << 32)
    strides = []
    for most in (7, 6):  # bytes of texts: there are seven
        monkeypatch.setattr(flat, "MOST_TEXT", most)
        page = pages.keep(pages.measure_page(refs, range(3)))
        strides.append(int(pages.strides[page]))
        found = pages.measure(np.arange(4) + (page << 32), range(3)).columns()
        assert [column.to_pylist() for column in found] == [
            [3, 1, None, 2],
            ["yy", "x", None, None],
            ["w", "", None, "zzz"],
        ]
    assert strides == [8 + 3 * 4, 0]


# -- collected little by little ------------------------------------------------------------------------------------

FLAT = [kind for kind in LEAVES if not pa.types.is_null(kind)]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_rows_collected_little_by_little(data: st.DataObject) -> None:
    """Whatever the room, the rows come out as `Gathering` gives them, none lost and none twice."""
    kinds = data.draw(st.lists(st.sampled_from(FLAT), min_size=1, max_size=4))
    schema = pa.schema([(f"c{i}", kind) for i, kind in enumerate(kinds)])
    pages = PageTable(Layout.of(schema))
    for rows in (5, 9):
        columns = [
            pa.array(data.draw(st.lists(st.sampled_from([None, *LEAVES[kind]]), min_size=rows, max_size=rows)), kind)
            for kind in kinds
        ]
        pages.add(pa.RecordBatch.from_arrays(columns, schema=schema))
    places = [*((0, row) for row in range(5)), *((1, row) for row in range(9))]
    chosen = data.draw(st.lists(st.sampled_from([None, *places]), max_size=40))
    refs = np.array([-1 if place is None else place[0] << 32 | place[1] for place in chosen], dtype=np.int64)
    everything = range(len(kinds))
    assert collectable(pages.layout, everything)
    collector, found, rest = Collector(pages, everything), [], refs
    room = data.draw(st.integers(1, 12))
    while len(rest):
        collector.allocate(room)
        while len(rest):
            step = data.draw(st.integers(1, 5))
            assert collector.fitting(rest[:step]) <= min(step, room - collector.rows)
            taken = collector.append(rest[:step])
            rest = rest[taken:]
            if taken < step:
                break
        if not collector.rows:
            room *= 4  # not even one row fits
        found.append(pa.RecordBatch.from_arrays(collector.columns(), schema=schema))
    wanted = pa.RecordBatch.from_arrays(pages.measure(refs, everything).columns(), schema=schema)
    result = pa.Table.from_batches(found, schema=schema)
    result.validate(full=True)
    assert result.combine_chunks().equals(pa.Table.from_batches([wanted]).combine_chunks())


def test_nested_columns_are_not_collected() -> None:
    layout = Layout.of(pa.schema([("a", pa.int64()), ("b", pa.list_(pa.int64()))]))
    assert collectable(layout, [0])
    assert not collectable(layout, [0, 1])
