"""Columns of a stream: types as text, what can be stored, and which changes flow.

A schema is an ordered list of columns, each a name and a type. All columns may be null, but `_captured`, the time a
record was captured, which every stream has. A schema changes by new columns at its end and by nothing else, so that
version `n` is a prefix of version `n + 1`, and records of an old version read as null in the new columns.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import pyarrow as pa

from ..errors import InputError, SchemaRefused, UnsupportedType
from .names import check_column

CAPTURED = pa.field("_captured", pa.timestamp("us", tz="UTC"))
RESERVED = ("_source", "_sequence")  # added to the rows when they are read
MOST_COLUMNS = 2000

_PLAIN = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_TEXTS = {plain: text for text, plain in _PLAIN.items()}
_ALIASES = {
    "boolean": "bool",
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "integer": "int32",
    "bigint": "int64",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "text": "string",
}
# what other types of Arrow are stored as; nothing is lost but the precision of nanoseconds
_STORED_AS = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}
_DECIMAL = re.compile(r"decimal\(([0-9]{1,2}),([0-9]{1,2})\)")
_DEEPEST = 8


def type_text(kind: pa.DataType) -> str:
    """A type as text that `parse_type` reads: `int64`, `decimal(10,2)`, `list<string>`, `struct<a:int32,b:date>`."""
    if kind in _TEXTS:
        return _TEXTS[kind]
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"list<{type_text(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_type)},{type_text(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{type_text(field.type)}' for field in kind)}>"
    raise UnsupportedType(f"type {kind} cannot be stored in a stream; cast the column to one of {', '.join(_PLAIN)}")


def parse_type(text: str) -> pa.DataType:
    """The type that a text stands for."""
    if not isinstance(text, str) or len(text) > 10_000:
        raise UnsupportedType(f"{str(text)[:60]!r} is not a type")
    return _parse("".join(text.split()).lower() if "struct" not in text else "".join(text.split()), 0)


def _parse(text: str, depth: int) -> pa.DataType:
    plain = _PLAIN.get(_ALIASES.get(text, text))
    if plain is not None:
        return plain
    decimal = _DECIMAL.fullmatch(text)
    if decimal and 1 <= int(decimal[1]) <= 38 and int(decimal[2]) <= int(decimal[1]):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    kind, _, inner = text.partition("<")
    if depth < _DEEPEST and inner.endswith(">"):
        parts = _split(inner[:-1])
        if kind == "list" and len(parts) == 1:
            return pa.list_(_parse(parts[0], depth + 1))
        if kind == "map" and len(parts) == 2:
            return pa.map_(_parse(parts[0], depth + 1), _parse(parts[1], depth + 1))
        if kind == "struct":
            pairs = [part.partition(":") for part in parts]
            return pa.struct([(check_column(name), _parse(inside, depth + 1)) for name, _, inside in pairs])
    raise UnsupportedType(
        f"{text[:60]!r} is not a type; known are {', '.join(_PLAIN)}, decimal(p,s), list<t>, map<k,v>, struct<name:t>"
    )


def _split(text: str) -> list[str]:
    """The parts between the commas that are inside no brackets."""
    parts, depth, begun = [], 0, 0
    for number, letter in enumerate(text):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            parts.append(text[begun:number])
            begun = number + 1
    return [*parts, text[begun:]]


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type that values of this type are stored as."""
    if isinstance(kind, pa.BaseExtensionType):
        raise UnsupportedType(f"extension type {kind} cannot be stored in a stream; send its storage instead")
    if pa.types.is_dictionary(kind):
        return stored_type(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_map(kind):
        return pa.map_(stored_type(kind.key_type), stored_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(check_column(field.name), stored_type(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(stored_type(kind.value_type))
    kind = _STORED_AS.get(kind, kind)
    type_text(kind)  # refuses what cannot be stored
    return kind


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """The schema that a stream needs for such batches: storable types, checked names, and `_captured`."""
    if len(schema) > MOST_COLUMNS:
        raise SchemaRefused(f"{len(schema)} columns are more than {MOST_COLUMNS}", difference=[])
    twice = (
        sorted({name for name in schema.names if schema.names.count(name) > 1})
        if len(set(schema.names)) < len(schema)
        else []
    )
    if twice:
        raise SchemaRefused(f"columns twice in the schema: {', '.join(twice)}", difference=twice)
    fields = []
    for field in schema:
        check_column(field.name)
        if field.name in RESERVED:
            raise SchemaRefused(f"column {field.name} is added by staging; name yours differently", difference=[])
        if field.metadata and b"ARROW:extension:name" in field.metadata:
            raise UnsupportedType(f"column {field.name} is of an extension type; send its storage instead")
        kind = stored_type(field.type)
        if field.name == CAPTURED.name and kind != CAPTURED.type:
            raise SchemaRefused(f"column {CAPTURED.name} must be {CAPTURED.type}, not {field.type}", difference=[])
        fields.append(pa.field(field.name, kind, nullable=field.nullable or field.name == CAPTURED.name))
    if CAPTURED.name not in schema.names:
        fields.append(CAPTURED)
    return pa.schema(fields)


def to_list(schema: pa.Schema) -> list[list[str]]:
    """A schema as plain data, for messages and manifests; a column that must not be null is marked."""
    return [[field.name, type_text(field.type), *([] if field.nullable else ["required"])] for field in schema]


def from_list(columns: object) -> pa.Schema:
    """The schema that `to_list` gave; checked, as it may come from anybody."""
    if not isinstance(columns, list) or not all(isinstance(one, list) and len(one) in (2, 3) for one in columns):
        raise InputError("a schema is a list of [name, type]")
    return pa.schema(
        [pa.field(check_column(one[0]), parse_type(one[1]), nullable=one[2:] != ["required"]) for one in columns]
    )


def widened(known: pa.Schema | None, offered: pa.Schema) -> pa.Schema:
    """The stream's schema once a source with the offered one (as `stored_schema` gives it) has joined.

    Columns that the source lacks are null in its records. New columns come to the end and must be nullable, as older
    records have no value there.
    """
    if known is None:
        return pa.schema([field.with_nullable(True) for field in offered])
    difference, added = [], []
    for field in offered:
        if field.name not in known.names:
            if field.nullable:
                added.append(field)
            else:
                difference.append(f"{field.name}: new, so it must be nullable")
        elif known.field(field.name).type != field.type:
            there = type_text(known.field(field.name).type)
            difference.append(f"{field.name}: the stream has {there}, offered is {type_text(field.type)}")
    if difference:
        raise SchemaRefused(
            f"the schema does not fit the stream: {'; '.join(difference)}. Send these columns as the stream has them, "
            "or use another stream",
            difference=difference,
        )
    return pa.schema([*known, *added]) if added else known


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly the columns of the schema: cast, put in order, null (or captured now) where missing."""
    if batch.schema.equals(schema):
        return batch
    unknown = [name for name in batch.schema.names if name not in schema.names]
    if unknown:
        raise SchemaRefused(
            f"columns {', '.join(unknown)} are not in the schema of this session; open one with the new schema",
            difference=unknown,
        )
    return pa.RecordBatch.from_arrays([_column(batch, field) for field in schema], schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name in batch.schema.names:
        column = batch.column(field.name)
        if column.type == field.type:
            return column
        try:
            return column.cast(field.type, safe=not pa.types.is_timestamp(field.type))
        except pa.ArrowException as problem:
            raise SchemaRefused(
                f"column {field.name} cannot be stored as {type_text(field.type)}: {problem}", difference=[field.name]
            ) from None
    if field.name == CAPTURED.name:
        return pa.repeat(pa.scalar(time.time_ns() // 1000, CAPTURED.type), batch.num_rows)
    return pa.nulls(batch.num_rows, field.type)


def read_schema(columns: pa.Schema) -> pa.Schema:
    """The schema of rows as they are read: the stream's own columns, then `_source`, `_sequence` and `_captured`."""
    own: Sequence[pa.Field] = [field for field in columns if field.name != CAPTURED.name]
    return pa.schema([*own, pa.field("_source", pa.string()), pa.field("_sequence", pa.int64()), CAPTURED])
