"""How a sink sends a message again that was not accepted and may be later."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tailrace.settings import Section


class Retry(Section):
    """Retries of a message, before it is parked. Its key waits meanwhile; other keys do not."""

    attempts: int = Field(default=5, ge=1, le=1000, description="Max times a message is sent.")
    first_s: float = Field(
        default=0.2, ge=0, description="Max seconds before the second attempt; they double."
    )
    max_s: float = Field(default=5.0, ge=0, description="Max seconds between two attempts.")
    max_elapsed_s: float = Field(
        default=30.0,
        ge=0,
        description="Max seconds from the first attempt on; after that there is no other one.",
    )
    alone_s: float = Field(
        default=60.0,
        ge=0,
        description=(
            "Seconds before a message is parked that fails while no other one is accepted. They "
            "double for each further message, up to ten times."
        ),
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_s < self.first_s:
            raise ValueError("`max_s` must be at least `first_s`")
        return self

    def delay_s(self, attempt: int, chance: float) -> float:
        """How long to wait after an attempt that failed: random, so that retries spread.

        `attempt` counts from 1, and `chance` is a random number from 0 to 1.

        >>> retry = Retry(first_s=0.2, max_s=5)
        >>> [retry.delay_s(attempt, 1.0) for attempt in (1, 2, 3, 10)]
        [0.2, 0.4, 0.8, 5.0]
        >>> retry.delay_s(3, 0.25)
        0.2
        """
        longest_s: float = min(self.max_s, self.first_s * 2.0 ** min(attempt - 1, 60))
        return longest_s * chance
