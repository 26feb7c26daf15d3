"""Reset the offsets of consumer groups, as `tailrace broker groups reset` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from tailrace.broker import resets
from tailrace.console.page import Action, Done, Effect, Reasoned
from tailrace.console.views.broker import FIGURES, session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.console.system import System


class ResetOffsets(Reasoned):
    """Whose offsets, of which topic, and where to."""

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
    return Effect(lines=tuple(reset.lines()), warning=reset.warning)


def _perform(system: System, path: Mapping[str, str], body: ResetOffsets, user: str) -> Done:
    del path
    with session(system) as connection:
        reset = resets.perform(
            connection, body.order(), data=system.config.data, user=user, reason=body.reason
        )
    system.forget(FIGURES)
    return Done(text=reset.lines()[0], page="/console/broker", document=reset.document())
