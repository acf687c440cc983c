"""Sizes that people write, read and printed."""

from __future__ import annotations

import pytest

from millstream.errors import InputError
from millstream.units import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, 1),
        (65_536, 65_536),
        ("1", 1),
        ("65536", 65_536),
        ("512b", 512),
        ("1kB", 1_000),
        ("256MB", 256_000_000),
        ("256mb", 256_000_000),
        ("1.5GB", 1_500_000_000),
        ("2TB", 2 * 10**12),
        ("1KiB", 1_024),
        ("64MiB", 64 * 2**20),
        ("1GiB", 2**30),
        ("0.5TiB", 2**39),
        ("  16 KiB ", 16_384),
    ],
)
def test_parse_bytes_reads_numbers_and_units(size: int | str, expected: int) -> None:
    assert parse_bytes(size) == expected


@pytest.mark.parametrize("size", ["", "MB", "12 parsecs", "1,5GB", "-1MB", "1e3", "0x10", "1 2", "٣MB"])
def test_parse_bytes_refuses_what_is_no_size(size: str) -> None:
    with pytest.raises(InputError, match="is not a size"):
        parse_bytes(size)


@pytest.mark.parametrize("size", [0, -1, "0", "0MB", "0.0001kB"])
def test_parse_bytes_refuses_less_than_a_byte(size: int | str) -> None:
    with pytest.raises(InputError, match="must be positive"):
        parse_bytes(size)


@pytest.mark.parametrize("size", [None, True, 1.5, b"1MB", [1]])
def test_parse_bytes_refuses_other_types(size: object) -> None:
    with pytest.raises(InputError, match="number of bytes"):
        parse_bytes(size)  # type: ignore[arg-type]


def test_parse_bytes_names_what_is_wrong() -> None:
    with pytest.raises(InputError, match="segment_bytes"):
        parse_bytes("big", what="segment_bytes")


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1 kB"),
        (16_384, "16.4 kB"),
        (256_000_000, "256 MB"),
        (2.4e9, "2.4 GB"),
        (3 * 10**12, "3 TB"),
        (-1_500, "-1.5 kB"),
    ],
)
def test_format_bytes_has_three_digits_and_a_unit(size: float, expected: str) -> None:
    assert format_bytes(size) == expected


@pytest.mark.parametrize("size", [1, 999, 1_000, 1_500, 64_000_000, 10**9, 2 * 10**12])
def test_printed_sizes_can_be_read_again(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size
