"""The limit of open files that the broker sets at its start."""

from __future__ import annotations

import resource

import pytest

from tailrace.broker.descriptors import SPARE, required
from tailrace.errors import ConfigError

NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (1024, 4096, 1000 + SPARE),
        (1024, NO_LIMIT, 1000 + SPARE),
        (1024, 1000 + SPARE, 1000 + SPARE),
        (1000 + SPARE, 4096, None),
        (NO_LIMIT, NO_LIMIT, None),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_needed(
    soft: int, hard: int, expected: int | None
) -> None:
    assert required(1000, soft=soft, hard=hard) == expected


def test_a_hard_limit_that_is_too_low_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"12,000 clients need 12,256 open files") as caught:
        required(12_000, soft=1024, hard=4096)
    assert "4,096" in str(caught.value)
    assert "--max-connections" in caught.value.hint
