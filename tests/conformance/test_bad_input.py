"""Bad input gets an error that names what is wrong, and changes nothing."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from driving import run_join
from millstream import errors, joins
from millstream.master import Master, build_local

every_algorithm = pytest.mark.parametrize("algorithm", joins.ALGORITHMS)

ROWS = 400
TABLE = pa.table(
    {
        "id": np.arange(ROWS),
        "name": [f"name {i}" for i in range(ROWS)],
        "price": pa.array(np.arange(ROWS) / 4),
    }
)
STREAM = pa.table({"id": np.arange(0, ROWS, 3), "quantity": pa.array(np.arange(0, ROWS, 3), pa.int32())})
ODD = (
    pa.array([[1], [2, 3]], pa.list_view(pa.int8())),
    pa.RunEndEncodedArray.from_arrays([1, 2], pa.array(["a", "b"])),
    pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 2])]),
    pa.array([b"0123456789abcdef"] * 2, pa.uuid()),
)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bad") / "master"
    build_local(TABLE, path, key="id", segment_bytes=1_024)
    return path


@pytest.fixture
def path(pristine: Path, tmp_path: Path) -> Path:
    """A copy of the master that may be damaged."""
    return Path(shutil.copytree(pristine, tmp_path / "copy"))


@pytest.fixture(scope="module")
def master(pristine: Path) -> Master:
    return Master.open(pristine)


def fingerprint(path: Path) -> dict[str, str]:
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


@contextmanager
def refused(kind: type[errors.MillstreamError], *words: str, path: Path | None = None) -> Iterator[None]:
    """The block fails with this error, which says all these words and can travel; files at the path stay the same."""
    before = fingerprint(path) if path else None
    with pytest.raises(kind) as caught:
        yield
    error = caught.value
    assert type(error) is kind
    for word in words:
        assert word in str(error), f"{word!r} is not in {str(error)!r}"
    assert "\n" not in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert not error.retryable
    if path:
        assert fingerprint(path) == before


class TestChoices:
    def test_unknown_algorithm(self, master: Master) -> None:
        with refused(errors.InputError, "mergejoin", *joins.ALGORITHMS, path=Path(master.path)):
            joins.create("mergejoin", master, on="id")

    def test_unknown_how(self, master: Master) -> None:
        with refused(errors.InputError, "outer", *joins.HOWS, path=Path(master.path)):
            joins.create("inlj", master, on="id", how="outer")
        with refused(errors.InputError, "outer"):
            joins.output_schema(STREAM.schema, master, on="id", how="outer", columns=None)

    @every_algorithm
    def test_unknown_option(self, algorithm: str, master: Master) -> None:
        with refused(errors.InputError, "speed"):
            joins.create(algorithm, master, on="id", speed=11)

    @pytest.mark.parametrize("memory", ["lots", "", "-1MB", 0, -5, "0", 1.5, None, True])
    def test_memory_that_is_no_size(self, memory: object, master: Master) -> None:
        with refused(errors.InputError, "memory"):
            joins.create("inlj", master, on="id", memory=memory)


class TestBudget:
    @every_algorithm
    @pytest.mark.parametrize("how", joins.HOWS)
    def test_least_works_and_one_byte_less_does_not(self, algorithm: str, how: str, master: Master) -> None:
        least = joins.least_memory(algorithm, master, on="id", how=how)
        result = run_join(algorithm, master, STREAM, on="id", how=how, memory=least)
        assert len(result) == (0 if how == "left_anti" else len(STREAM))
        for memory in (least - 1, least // 2, 1):
            with refused(errors.BudgetTooSmall, path=Path(master.path)):
                joins.create(algorithm, master, on="id", how=how, memory=memory)

    @every_algorithm
    def test_error_carries_the_least(self, algorithm: str, master: Master) -> None:
        with pytest.raises(errors.BudgetTooSmall) as caught:
            joins.create(algorithm, master, on="id", memory=10)
        assert caught.value.least == joins.least_memory(algorithm, master, on="id", how="inner")
        assert re.search(r"\d", str(caught.value))
        assert pickle.loads(pickle.dumps(caught.value)).least == caught.value.least
        joins.create(algorithm, master, on="id", memory=caught.value.least).close()

    @every_algorithm
    def test_least_grows_with_the_largest_segment(self, algorithm: str, master: Master, tmp_path: Path) -> None:
        wide = TABLE.set_column(1, "name", pa.array(["x" * (50_000 if i == 7 else 5) for i in range(ROWS)]))
        other = build_local(wide, tmp_path / "m", key="id", segment_bytes=1_024)
        more = joins.least_memory(algorithm, other, on="id", how="inner")
        assert more >= joins.least_memory(algorithm, master, on="id", how="inner") + 40_000


def both_ways(
    kind: type[errors.MillstreamError], *words: str, master: Master, stream: pa.Schema, **options: object
) -> None:
    """Refused when the schema is checked beforehand, and when an operator meets the stream."""
    full = {"how": "inner", "columns": None, **options}
    with refused(kind, *words, path=Path(master.path)):
        joins.output_schema(stream, master, **full)
    batch = pa.RecordBatch.from_arrays([pa.nulls(3, field.type) for field in stream], schema=stream)
    with refused(kind, *words, path=Path(master.path)):
        operator = joins.create("inlj", master, **full)
        list(operator.process(batch))
        list(operator.flush())


class TestColumns:
    @pytest.mark.parametrize(
        "kind",
        [pa.string(), pa.bool_(), pa.date32(), pa.timestamp("us"), pa.binary(), pa.list_(pa.int64())],
        ids=str,
    )
    def test_key_types_that_cannot_be_compared(self, kind: pa.DataType, master: Master) -> None:
        stream = pa.schema([("id", kind)])
        both_ways(errors.KeyTypeMismatch, str(kind), "int64", "id", master=master, stream=stream, on="id")

    def test_key_type_with_and_without_zone(self, tmp_path: Path) -> None:
        table = pa.table({"t": pa.array([0], pa.timestamp("us", tz="UTC")), "row": [1]})
        master = build_local(table, tmp_path / "m", key="t")
        stream = pa.schema([("t", pa.timestamp("us"))])
        both_ways(
            errors.KeyTypeMismatch, "timestamp[us]", "timestamp[us, tz=UTC]", master=master, stream=stream, on="t"
        )

    def test_missing_stream_column(self, master: Master) -> None:
        words = ("'product'", "id", "quantity")
        both_ways(errors.UnknownColumn, *words, master=master, stream=STREAM.schema, on={"product": "id"})

    def test_missing_key_column_in_stream(self, master: Master) -> None:
        both_ways(
            errors.UnknownColumn, "'id'", "product", master=master, stream=pa.schema([("product", pa.int64())]), on="id"
        )

    def test_missing_master_column(self, master: Master) -> None:
        both_ways(errors.UnknownColumn, "'nr'", "price", master=master, stream=STREAM.schema, on={"id": "nr"})

    def test_missing_chosen_column(self, master: Master) -> None:
        options = {"on": "id", "columns": ["price", "colour"]}
        both_ways(errors.UnknownColumn, "'colour'", "name", "price", master=master, stream=STREAM.schema, **options)

    def test_on_is_not_the_key(self, master: Master) -> None:
        stream = pa.schema([("id", pa.int64()), ("name", pa.string())])
        for on in ("name", ["id", "name"], [], {}):
            both_ways(errors.InputError, "id", master=master, stream=stream, on=on, columns=["price"])

    def test_on_is_a_part_of_the_key(self, tmp_path: Path) -> None:
        master = build_local(TABLE, tmp_path / "m", key=["id", "name"])
        both_ways(errors.InputError, "name", master=master, stream=STREAM.schema, on="id")

    def test_clash(self, master: Master) -> None:
        stream = pa.schema([("id", pa.int64()), ("price", pa.float64()), ("other", pa.int64())])
        both_ways(errors.ColumnClash, "price", "columns", master=master, stream=stream, on="id")

    def test_clash_with_a_chosen_key_column(self, master: Master) -> None:
        both_ways(
            errors.ColumnClash, "id", "columns", master=master, stream=STREAM.schema, on="id", columns=["id", "price"]
        )

    def test_column_chosen_twice(self, master: Master) -> None:
        options = {"on": "id", "columns": ["price", "price"]}
        both_ways(errors.InputError, "price", master=master, stream=STREAM.schema, **options)

    @pytest.mark.parametrize("how", joins.HOWS)
    def test_stream_column_twice(self, how: str, master: Master) -> None:
        stream = pa.schema([("id", pa.int64()), ("x", pa.int64()), ("x", pa.string())])
        both_ways(errors.InputError, "x", master=master, stream=stream, on="id", how=how)

    @pytest.mark.parametrize("odd", ODD, ids=lambda odd: str(odd.type))
    def test_column_without_a_plain_layout(self, odd: pa.Array, master: Master, path: Path) -> None:
        operator = joins.create("auto", master, on="id", memory="4MB")
        with refused(errors.UnsupportedType, "'odd'", str(odd.type)):
            list(operator.process(pa.RecordBatch.from_pydict({"id": range(len(odd)), "odd": odd})))
        with refused(errors.UnsupportedType, "'odd'", str(odd.type), path=path):
            build_local(pa.table({"id": range(len(odd)), "odd": odd}), path, key="id")

    @every_algorithm
    def test_stream_that_changes_its_schema(self, algorithm: str, master: Master) -> None:
        operator = joins.create(algorithm, master, on="id")
        first = list(operator.process(STREAM.to_batches()[0]))
        with pytest.raises(errors.MillstreamError, match="schema"):
            list(operator.process(pa.RecordBatch.from_pydict({"id": [1], "quantity": ["one"]})))
        out = sum(len(batch) for batch in [*first, *operator.flush()])
        assert out == len(STREAM)
        operator.close()


class TestPaths:
    def test_missing_path(self, tmp_path: Path) -> None:
        with refused(errors.MasterNotFound, str(tmp_path / "nowhere")):
            Master.open(tmp_path / "nowhere")
        assert not (tmp_path / "nowhere").exists()

    def test_missing_version(self, path: Path) -> None:
        with refused(errors.MasterNotFound, str(path), "9", "1", path=path):
            Master.open(path, version=9)

    def test_empty_directory(self, tmp_path: Path) -> None:
        with refused(errors.NotAMaster, str(tmp_path), path=tmp_path):
            Master.open(tmp_path)

    def test_directory_of_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "data.parquet").write_bytes(b"PAR1")
        with refused(errors.NotAMaster, str(tmp_path), path=tmp_path):
            Master.open(tmp_path)

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("hello")
        with refused(errors.NotAMaster, str(tmp_path / "file"), path=tmp_path):
            Master.open(tmp_path / "file")

    def test_unknown_filesystem(self) -> None:
        with refused(errors.InputError, "gopher"):
            Master.open("gopher://host/master")

    def test_building_over_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "precious.csv").write_text("1,2,3")
        with refused(errors.InputError, str(tmp_path), path=tmp_path):
            build_local(TABLE, tmp_path, key="id")

    def test_building_with_a_bad_key_leaves_the_old_version(self, path: Path) -> None:
        with refused(errors.UnknownColumn, "'nr'", "id", path=path):
            build_local(TABLE, path, key="nr")
        for kind in (pa.list_(pa.string()), pa.uint64(), pa.time64("us"), pa.struct([("x", pa.int32())])):
            with refused(errors.UnsupportedType, "odd", str(kind), path=path):
                build_local(pa.table({"odd": pa.nulls(1, kind)}), path, key="odd")
        with refused(errors.InputError, path=path):
            build_local(TABLE, path, key=[])
        assert Master.open(path).version == 1


def edit_manifest(path: Path, change: Callable[[dict[str, object]], None]) -> Path:
    (file,) = (path / "manifests").glob("*.json")
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    return file


class TestManifest:
    def test_newer_format(self, path: Path) -> None:
        file = edit_manifest(path, lambda content: content.update(format=99))
        with refused(errors.FormatTooNew, str(file), "99", path=path):
            Master.open(path)

    def test_newer_format_with_unknown_fields(self, path: Path) -> None:
        edit_manifest(path, lambda content: (content.clear(), content.update(format=3, body="other")))
        with refused(errors.FormatTooNew, "3", path=path):
            Master.open(path)

    def test_older_format(self, path: Path) -> None:
        file = edit_manifest(path, lambda content: content.update(format=1))
        with refused(errors.FormatTooOld, str(file), "format 1", "build the master again", path=path):
            Master.open(path)

    @pytest.mark.parametrize("content", ["", "{", "[]", "null", "{}", '{"format": "one"}', '{"format": 2}', "\0\xff"])
    def test_no_manifest_at_all(self, content: str, path: Path) -> None:
        (file,) = (path / "manifests").glob("*.json")
        file.write_bytes(content.encode("latin-1"))
        with refused(errors.CorruptMaster, str(file), path=path):
            Master.open(path)

    def test_any_changed_byte_is_noticed(self, path: Path) -> None:
        (file,) = (path / "manifests").glob("*.json")
        content, sound = file.read_bytes(), Master.open(path).manifest
        rng = np.random.default_rng(0)
        for at in rng.integers(0, len(content), 150).tolist():
            flipped = bytearray(content)
            flipped[at] ^= 1 << int(rng.integers(0, 8))
            file.write_bytes(flipped)
            try:
                opened = Master.open(path)
            except errors.MillstreamError:
                continue
            assert opened.manifest == sound  # it was white space


def segment_at(path: Path, position: int) -> int:
    """The segment of the only data file that holds this byte."""
    offsets = Master.open(path).index.offset
    return int(np.searchsorted(offsets, position, side="right")) - 1


def data_file(path: Path, suffix: str = ".arrow") -> Path:
    (file,) = (path / "data").rglob(f"part-*{suffix}")
    return file


@every_algorithm
class TestDamage:
    def join_all(self, algorithm: str, path: Path) -> pa.Table:
        stream = pa.table({"id": np.arange(ROWS)})
        return run_join(algorithm, Master.open(path), stream, on="id")

    @pytest.mark.parametrize("share", [0.05, 0.5, 0.99])
    def test_flipped_bit(self, algorithm: str, share: float, path: Path) -> None:
        file = data_file(path)
        content = bytearray(file.read_bytes())
        first = int(Master.open(path).index.offset[0])
        at = first + int(share * (len(content) - first - 16))
        content[at] ^= 0x10
        segment = segment_at(path, at)
        file.write_bytes(content)
        damage = "is damaged: its checksum does not fit its content"
        with refused(errors.CorruptMaster, str(file), f"segment {segment} ", damage, path=path):
            self.join_all(algorithm, path)

    def test_truncated_file(self, algorithm: str, path: Path) -> None:
        file = data_file(path)
        content = file.read_bytes()
        file.write_bytes(content[: len(content) * 2 // 3])
        with refused(errors.CorruptMaster, str(file), "segment ", path=path):
            self.join_all(algorithm, path)

    def test_empty_file(self, algorithm: str, path: Path) -> None:
        file = data_file(path)
        file.write_bytes(b"")
        with refused(errors.CorruptMaster, str(file), path=path):
            self.join_all(algorithm, path)

    def test_missing_file(self, algorithm: str, path: Path) -> None:
        file = data_file(path)
        file.unlink()
        with refused(errors.MasterNotFound, str(file), path=path):
            self.join_all(algorithm, path)

    def test_damaged_index(self, algorithm: str, path: Path) -> None:
        file = flip(data_file(path, ".index"))
        with refused(errors.CorruptMaster, str(file), path=path):
            self.join_all(algorithm, path)

    def test_damaged_filter(self, algorithm: str, path: Path) -> None:
        """It is met when keys that are not there make the filter worth loading."""
        file = flip(data_file(path, ".filter"))
        operator = joins.create(algorithm, Master.open(path), on="id", memory="1MB")
        with refused(errors.CorruptMaster, str(file), path=path):
            for start in range(ROWS, 10 * ROWS, ROWS):
                list(operator.process(pa.RecordBatch.from_pydict({"id": np.arange(start, start + ROWS)})))
                list(operator.flush())
        operator.close()


def flip(file: Path) -> Path:
    """Change one bit in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return file


def test_verify_names_the_segment(path: Path) -> None:
    assert Master.open(path).verify() == Master.open(path).statistics.segments
    file = flip(data_file(path))
    segment = segment_at(path, file.stat().st_size // 2)
    with refused(errors.CorruptMaster, str(file), f"segment {segment} ", path=path):
        Master.open(path).verify()
