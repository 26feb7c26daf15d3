"""Histograms compared with counting one value at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.observe.histogram import BOUNDS_S, Histogram

AGES = st.lists(
    st.integers(0, 10**11) | st.sampled_from([round(bound * 1e6) for bound in BOUNDS_S])
)


def counted(ages_us: list[int]) -> Histogram:
    return Histogram.of(np.array(sorted(ages_us), np.int64))


@given(AGES)
def test_every_value_is_in_the_first_bucket_that_is_not_below_it(ages_us: list[int]) -> None:
    found = counted(ages_us)
    expected = [0] * (len(BOUNDS_S) + 1)
    for age in ages_us:
        expected[next((n for n, bound in enumerate(BOUNDS_S) if age <= bound * 1e6), -1)] += 1
    assert found.counts == tuple(expected)
    assert found.count == len(ages_us)
    assert found.seconds == pytest.approx(sum(ages_us) / 1e6)


@given(AGES, AGES)
def test_histograms_add_up(one: list[int], other: list[int]) -> None:
    together = counted(one + other)
    assert (counted(one) + counted(other)).counts == together.counts
    assert (together - counted(other)).counts == counted(one).counts
    assert (together - counted(other)).seconds == pytest.approx(sum(one) / 1e6, abs=1e-3)


def test_a_sum_that_64_bits_do_not_hold() -> None:
    """GIVEN commit times of a clock that is centuries off THEN the sum is still one."""
    ages_us = np.full(1000, 2**61, np.int64)
    assert Histogram.of(ages_us).seconds == pytest.approx(1000 * 2**61 / 1e6)
