"""Numbers as text: few and many numbers have the same text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tailrace.encode.syntaxes import digits

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

_YEAR_US = 31_556_952_000_000
LSNS = some.lists(some.integers(0, 2**64 - 1), min_size=1, max_size=digits.FEW)
TIMES = some.lists(
    some.integers(-1960 * _YEAR_US, 8000 * _YEAR_US), min_size=1, max_size=digits.FEW
)


def agree(formatted: Callable[..., pa.BinaryArray], numbers: np.ndarray[Any, Any]) -> None:
    few = formatted(numbers)
    many = formatted(np.resize(numbers, digits.FEW + len(numbers)))
    assert few.type == many.type
    assert few.to_pylist() == many[: len(numbers)].to_pylist()


@pytest.mark.parametrize(
    "formatted", [digits.padded_hex, digits.short_hex, digits.lsn_text, digits.decimal]
)
@given(numbers=LSNS)
def test_lsns(formatted: Callable[..., pa.BinaryArray], numbers: list[int]) -> None:
    agree(formatted, np.array(numbers, np.uint64))


@given(numbers=TIMES)
def test_times(numbers: list[int]) -> None:
    agree(digits.iso_time, np.array(numbers, np.int64))
    agree(digits.decimal, np.array(numbers, np.int64))


def test_no_numbers() -> None:
    for formatted in (digits.padded_hex, digits.short_hex, digits.lsn_text, digits.decimal):
        assert formatted(np.array([], np.uint64)).to_pylist() == []
    assert digits.iso_time(np.array([], np.int64)).to_pylist() == []
