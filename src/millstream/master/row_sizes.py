"""How many bytes rows take in a segment."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..kernels.layout import BITS, FIXED, LIST, REPEAT, STRUCT, VARLEN, Layout, Node
from ..kernels.pages import items


def row_bytes(batch: pa.RecordBatch) -> np.ndarray:
    """About how many bytes each row takes in a segment: all but what is the same for every segment."""
    sizes = np.zeros(batch.num_rows, dtype=np.int64)
    if batch.num_rows:
        for node, column in zip(Layout.of(batch.schema).columns, batch.columns, strict=True):
            if node.kind in (LIST, REPEAT, STRUCT, VARLEN):
                sizes += np.diff(_ends(node, column)).astype(np.int64)
            else:
                sizes += max(1, column.nbytes // batch.num_rows)
    return sizes


def nested(schema: pa.Schema) -> bool:
    """Whether a column has others inside."""
    return any(node.children for node in Layout.of(schema).columns)


def _ends(node: Node, array: pa.Array) -> np.ndarray:
    """The bytes before each value of an array, and of all of them; bits that say what is NULL do not count."""
    count = np.arange(len(array) + 1)
    if node.kind == FIXED:
        return node.width * count
    if node.kind == BITS:
        return count / 8
    if node.kind == VARLEN:
        return _offsets(node, array) + node.width * count
    if node.kind == LIST:
        return _ends(node.children[0], items(array))[_offsets(node, array)] + node.width * count
    if node.kind == REPEAT:
        return _ends(node.children[0], items(array))[(array.offset + count) * node.width]
    total = np.zeros(len(array) + 1)
    for i, child in enumerate(node.children):
        total += _ends(child, array.field(i))
    return total


def _offsets(node: Node, array: pa.Array) -> np.ndarray:
    """Where each value of any length begins, and where the last one ends."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array) + 1, dtype=np.int64)
    offsets = np.frombuffer(buffer, dtype=np.int32 if node.width == 4 else np.int64)
    return offsets[array.offset : array.offset + len(array) + 1]
