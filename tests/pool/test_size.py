"""Sizes: reading them, refusing what is not one, writing them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtr_alloc.pool.size import format_size, parse_size, short_size


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (1, 1),
        (4096, 4096),
        ("1B", 1),
        ("8GiB", 8 << 30),
        ("512 MiB", 512 << 20),
        (" 3 KiB ", 3 << 10),
        ("1.5GB", 1_500_000_000),
        (".5 KiB", 512),
        ("2TB", 2 * 10**12),
        ("1 PiB", 1 << 50),
        ("1gib", 1 << 30),
        ("1.0001 KB", 1000),
        ("2G", 2 << 30),
        ("512m", 512 << 20),
        (7407406.8, 7407406),
        (2**63 - 1, 2**63 - 1),
    ],
)
def test_a_size_is_read_exactly(written: int | str, size: int) -> None:
    assert parse_size(written) == size


NO_SIZE = "is not a size: write a number with a unit"
TOO_MUCH = "more than any machine can address"


@pytest.mark.parametrize(
    ("error", "message", "written"),
    [
        *((ValueError, NO_SIZE, one) for one in ("8 apples", "", "8", "GiB", "-1GiB", "1e9 B")),
        *((ValueError, NO_SIZE, one) for one in ("1..5 MB", "nan", "NaN GiB", "inf B", "1 2 MB")),
        (ValueError, NO_SIZE, "٣ MB"),
        *((ValueError, "is not above zero", one) for one in (0, -1, "0 GiB", "0.3 B")),
        *((ValueError, TOO_MUCH, one) for one in (2**63, "8192 PiB")),
        *((TypeError, "is not a size", one) for one in (True, False, None, b"8GiB")),
    ],
)
def test_what_is_no_size_is_refused(error: type[Exception], message: str, written: Any) -> None:
    with pytest.raises(error, match=message):
        parse_size(written)


def test_the_error_repeats_the_argument_and_says_what_to_write() -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the whole message is compared)
        parse_size("8 apples")
    assert str(error.value) == (
        'budget "8 apples" is not a size: write a number with a unit, such as "8GiB"'
    )
    with pytest.raises(ValueError, match=r'or a share as "60%"'):
        parse_size("60")
    with pytest.raises(ValueError, match=r'or bytes as "160000000B"'):
        parse_size("160000000")
    with pytest.raises(ValueError, match=r'^address_space "x" is not a size'):
        parse_size("x", "address_space")


@pytest.mark.parametrize(
    ("size", "written"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        ((1 << 20) - 1, "1 MiB"),
        (3 << 19, "1.5 MiB"),
        (64 << 20, "64 MiB"),
        (10**9, "953.67 MiB"),
        (8 << 30, "8 GiB"),
        (1 << 60, "1024 PiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_a_size_is_written_in_the_largest_unit_that_it_fills(size: int, written: str) -> None:
    assert format_size(size) == written


@given(st.integers(1, 2**62))
def test_a_written_size_reads_back_to_within_its_two_decimals(size: int) -> None:
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.006)


@given(st.integers(1, 2**50))
def test_a_short_size_is_enough_and_little_more(size: int) -> None:
    assert size <= parse_size(short_size(size)) <= max(1.011 * size, size + 11)


def test_a_short_size_is_written_as_a_budget_is() -> None:
    assert [short_size(size) for size in (500, 5400, 34 << 20, (34 << 20) + 1, 300 << 30)] == [
        *("0.49KiB", "5.28KiB", "34MiB", "34.1MiB", "307200MiB")
    ]


@pytest.mark.parametrize("size", ["9" * 5000 + "GiB", "0." + "1" * 5000 + "GiB", "a" * 5000])
def test_a_long_text_is_refused_by_a_short_one(size: str) -> None:
    with pytest.raises(ValueError, match=r'^budget ".{100}\.\.\." is not a size: ') as error:
        parse_size(size)
    assert len(str(error.value)) < 250


def test_an_integer_that_python_does_not_write_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^budget of 16610 bits is more than any machine can"):
        parse_size(10**5000)
    with pytest.raises(ValueError, match=r"^budget of 16610 bits is not above zero"):
        parse_size(-(10**5000))
