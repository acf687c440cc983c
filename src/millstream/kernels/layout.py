"""How an Arrow schema lies in memory: which buffers a column has and how a row is found in them.

A page is any set of Arrow columns whose buffers start at row 0. All pages of one schema have the same buffers in
the same order (that of Arrow IPC: depth first, validity before offsets before data), so a page is fully described
by one row of addresses.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.types as pt

from ..errors import UnsupportedType

FIXED, BITS, VARLEN, LIST, STRUCT, REPEAT, NULL = "fixed", "bits", "varlen", "list", "struct", "repeat", "null"


@dataclass(frozen=True)
class Node:
    """One node of a column's type tree and the index of its first buffer within a page."""

    type: pa.DataType
    kind: str
    width: int
    first: int
    buffers: int
    children: tuple[Node, ...] = field(default=())

    def nodes(self) -> int:
        return 1 + sum(child.nodes() for child in self.children)


def _fixed_width(type_: pa.DataType) -> int | None:
    try:
        bits = type_.bit_width
    except ValueError:
        return None
    return bits // 8 if bits % 8 == 0 else None


def node(type_: pa.DataType, first: int, *, column: str = "") -> Node:
    """The node of a type whose buffers begin at index `first`; types without a plain layout are refused."""
    if pt.is_null(type_):
        return Node(type_, NULL, 0, first, 0)
    if pt.is_boolean(type_):
        return Node(type_, BITS, 0, first, 2)
    if pt.is_string(type_) or pt.is_binary(type_):
        return Node(type_, VARLEN, 4, first, 3)
    if pt.is_large_string(type_) or pt.is_large_binary(type_):
        return Node(type_, VARLEN, 8, first, 3)
    if pt.is_list(type_) or pt.is_map(type_) or pt.is_large_list(type_):
        if pt.is_map(type_):
            item = pa.struct([pa.field("key", type_.key_type, nullable=False), type_.item_field])
        else:
            item = type_.value_type
        child = node(item, first + 2, column=column)
        return Node(type_, LIST, 8 if pt.is_large_list(type_) else 4, first, 2, (child,))
    if pt.is_fixed_size_list(type_):
        child = node(type_.value_type, first + 1, column=column)
        return Node(type_, REPEAT, type_.list_size, first, 1, (child,))
    if pt.is_struct(type_):
        children = []
        at = first + 1
        for i in range(type_.num_fields):
            child = node(type_.field(i).type, at, column=column)
            at = last(child)
            children.append(child)
        return Node(type_, STRUCT, 0, first, 1, tuple(children))
    width = None if isinstance(type_, pa.BaseExtensionType) or pt.is_dictionary(type_) else _fixed_width(type_)
    if width is None or pt.is_union(type_) or pt.is_run_end_encoded(type_):
        raise UnsupportedType(
            f"column {column!r} has type {type_}, which cannot be stored; cast it to a plain type first"
        )
    return Node(type_, FIXED, width, first, 2)


def last(node: Node) -> int:
    """The index after the last buffer of a node and its children."""
    return last(node.children[-1]) if node.children else node.first + node.buffers


@dataclass(frozen=True)
class Layout:
    """The columns of a schema as nodes over one row of buffer addresses."""

    schema: pa.Schema
    columns: tuple[Node, ...]
    buffers: int

    @classmethod
    def of(cls, schema: pa.Schema) -> Layout:
        columns: list[Node] = []
        at = 0
        for entry in schema:
            column = node(entry.type, at, column=entry.name)
            at = last(column)
            columns.append(column)
        return cls(schema, tuple(columns), at)

    def column(self, name: str) -> Node:
        return self.columns[self.schema.get_field_index(name)]


def plain(type_: pa.DataType) -> pa.DataType:
    """The plain type that holds the same values: views and dictionaries become strings, binaries and values."""
    if pt.is_dictionary(type_):
        return plain(type_.value_type)
    if pt.is_string_view(type_):
        return pa.string()
    if pt.is_binary_view(type_):
        return pa.binary()
    return type_
