"""How many random cases a test runs: few by default, many with Hypothesis's profile `long`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

SHORT = 25
LONG = 50


def register_profiles() -> None:
    """`short` is the default; `make test-long` passes `--hypothesis-profile=long`.

    A busy machine may take any time for an example, so no profile has a deadline, and how long
    drawing takes is no defect of a test. A failure prints what repeats it.
    """
    settings.register_profile(
        "short",
        deadline=None,
        max_examples=SHORT,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.register_profile("long", settings.get_profile("short"), max_examples=LONG)
    settings.load_profile("short")


def examples(factor: float) -> int:
    """For `max_examples`: so many times the profile's, where one example costs more or less."""
    return max(1, round(settings().max_examples * factor))


def seeds(count: int, *, short: int, long: int | None = None) -> list[int | ParameterSet]:
    """Seeds 0 to `count`, as parameters: those from `short` on run in `make test-long`, and those
    from `long` on in `make soak`."""
    end = count if long is None else long
    later = [pytest.param(seed, marks=pytest.mark.long) for seed in range(short, end)]
    last = [pytest.param(seed, marks=pytest.mark.soak) for seed in range(end, count)]
    return [*range(min(short, count)), *later, *last]
