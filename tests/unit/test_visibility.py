"""The visibility rule, against a plain reading of PostgreSQL's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.visibility import Visibility


@st.composite
def snapshots(draw: st.DrawFn) -> Visibility:
    xmin = draw(st.one_of(st.integers(3, 1000), st.integers(2**32 - 50, 2**32 + 50)))
    xmax = xmin + draw(st.integers(0, 40))
    running = draw(st.sets(st.integers(xmin, xmax - 1))) if xmax > xmin else set()
    return Visibility(xmin, xmax, tuple(sorted(running)))


@given(snapshots(), st.lists(st.integers(-60, 60), max_size=20))
def test_by_the_rule(snapshot: Visibility, around: list[int]) -> None:
    full = [max(snapshot.xmax + each, 3) for each in around]
    xids = np.array([each & 0xFFFFFFFF for each in full], np.uint32)
    expected = [each < snapshot.xmax and each not in snapshot.running for each in full]
    assert snapshot.sees(xids).tolist() == expected


@given(snapshots())
def test_text_and_back(snapshot: Visibility) -> None:
    assert Visibility.parse(str(snapshot)) == snapshot


@pytest.mark.parametrize("text", ["", "1:2", "2:1:", "1:2:3,", "a:b:c", "1:2:,3"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a snapshot such as"):
        Visibility.parse(text)
