from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from tailrace.observe import failpoint

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoint.configure("")


def test_acts_at_the_given_time_only() -> None:
    failpoint.configure("a=eio@2")
    failpoint.hit("a")
    failpoint.hit("b")
    with pytest.raises(OSError, match="Input/output error") as caught:
        failpoint.hit("a")
    assert caught.value.errno == errno.EIO
    failpoint.hit("a")


def test_armed_tells_of_the_next_hit() -> None:
    failpoint.configure("a=enospc@2")
    assert [failpoint.armed("a"), failpoint.armed("a")] == [False, True]
    assert not failpoint.armed("b")


def test_unknown_action_is_refused() -> None:
    with pytest.raises(ValueError, match="action must be one of"):
        failpoint.configure("a=explode")
