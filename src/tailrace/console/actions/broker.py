"""Reset the offsets of consumer groups, as `tailrace broker groups reset` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator

from tailrace.broker import resets
from tailrace.console.page import Action, Done, Effect, Reasoned
from tailrace.console.views.broker import FIGURES
from tailrace.console.views.source import session
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.console.system import System


_MOST_OFFSETS = 50_000
"""Characters: some thousand partitions. A body has at most 64 KiB."""


class ResetOffsets(Reasoned):
    """Whose offsets, of which topic, and where to."""

    resolved: ClassVar[frozenset[str]] = frozenset({"offsets"})

    group: str = Field(min_length=1, max_length=500, description="Consumer group.")
    to: str = Field(
        min_length=1,
        max_length=20,
        description="earliest, latest, or an offset; one outside of a partition becomes its "
        "nearest end.",
    )
    topic: str = Field(
        default="",
        max_length=260,
        description="Topic such as orders, or a partition of it: orders:2. Empty: all that the "
        "group has offsets of.",
    )
    offsets: str = Field(
        default="",
        max_length=_MOST_OFFSETS,
        description="The old and new offsets that `dry_run` has shown. It is refused if the old "
        "ones have changed since. Empty: as it is now.",
    )

    @field_validator("group")
    @classmethod
    def _check_group(cls, value: str) -> str:
        if "\0" in value:
            raise ValueError("must be a group, got a NUL")
        return value

    @field_validator("to")
    @classmethod
    def _check_target(cls, value: str) -> str:
        resets.parse_target(value)
        return value

    @field_validator("topic")
    @classmethod
    def _check_topic(cls, value: str) -> str:
        resets.parse_topic(value)
        return value

    @field_validator("offsets")
    @classmethod
    def _check_offsets(cls, value: str) -> str:
        resets.parse_offsets(value)
        return value

    def order(self) -> resets.Order:
        """What is asked for."""
        topic, partition = resets.parse_topic(self.topic)
        to = resets.parse_target(self.to)
        return resets.Order(group=self.group, to=to, topic=topic, partition=partition)


def actions() -> list[Action[Any]]:
    """The actions on the broker."""
    reset = Action(
        name="reset_offsets", path="/broker/reset", title="Reset offsets",
        body=ResetOffsets, effect=_effect, perform=_perform, danger=True,
    )  # fmt: skip
    return [reset]


def _effect(system: System, path: Mapping[str, str], body: ResetOffsets) -> Effect:
    del path
    with session(system) as connection:
        reset = resets.plan(connection, body.order())
    offsets = reset.offsets()
    if len(offsets) > _MOST_OFFSETS:
        raise ConfigError(
            f"the group has offsets of {len(reset.moves):,} partitions: too many for one request",
            hint="Name a topic. Or: tailrace broker groups reset",
        )
    return Effect(lines=tuple(reset.lines()), warning=reset.warning, resolved={"offsets": offsets})


def _perform(system: System, path: Mapping[str, str], body: ResetOffsets, user: str) -> Done:
    del path
    with session(system) as connection:
        reset = resets.perform(
            connection, body.order(), shown=resets.parse_offsets(body.offsets),
            data=system.config.data, user=user, reason=body.reason,
        )  # fmt: skip
    system.forget(FIGURES)
    return Done(text=reset.lines()[0], page="/console/broker", document=reset.document())
