"""Retry or drop parked messages, as `tailrace parked` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tailrace.console.page import Action, Body, Done, Effect
from tailrace.errors import ConfigError
from tailrace.parking import control
from tailrace.parking.selection import Selection
from tailrace.run import status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.console.system import System


class Selected(Body):
    """Which messages: those that match everything that is set."""

    resolved: ClassVar[frozenset[str]] = frozenset({"upto"})

    id: str = Field(default="", max_length=500, description="Id, as consumers see it.")
    ids: tuple[Annotated[str, Field(max_length=500)], ...] = Field(
        default=(), max_length=1000, description="Several ids."
    )
    key: str = Field(default="", max_length=1000, description="Key, as text.")
    destination: str = Field(
        default="", max_length=500, description="Destination; wildcards: * and ?"
    )
    code: str = Field(default="", max_length=100, description="Code of the last error.")
    all: bool = Field(default=False, description="All parked messages of the pipeline.")
    upto: int | None = Field(
        default=None, ge=1, le=2**62,
        description="Only messages up to this number. None: all that are parked now.",
    )  # fmt: skip

    @model_validator(mode="after")
    def _chosen(self) -> Self:
        if self.all == any((self.id, self.ids, self.key, self.destination, self.code)):
            raise ValueError("set id, ids, key, destination or code, or else all")
        return self

    def selection(self) -> Selection:
        """The messages that are meant."""
        return Selection(
            ids=(*self.ids, self.id) if self.id else self.ids, key=self.key or None,
            destination=self.destination, code=self.code, upto=self.upto,
        )  # fmt: skip


def actions() -> list[Action[Any]]:
    """The actions on parked messages."""
    return [_order("retry"), _order("drop")]


def _order(action: Literal["retry", "drop"]) -> Action[Selected]:
    def effect(system: System, path: Mapping[str, str], body: Selected) -> Effect:
        name = path["pipeline"]
        with control.listing(system.config, name) as listing:
            selection = body.selection().limited(listing.last())
            matched, resolved = listing.count(selection), {"upto": selection.upto or 0}
        if not matched:
            raise ConfigError("no parked message matches", hint="They may have been delivered.")
        if action == "drop":
            return Effect(
                lines=(f"{matched:,} messages are deleted.", "Later messages of their keys go on."),
                warning="Dropped messages never reach the sink. Export them first: "
                f"tailrace parked export {name}",
                resolved=resolved,
            )
        return Effect(
            lines=(
                f"{matched:,} messages are sent again.",
                "Other parked messages of their keys are sent with them, so that the order of "
                "each key is kept.",
            ),
            resolved=resolved,
        )

    def perform(system: System, path: Mapping[str, str], body: Selected, user: str) -> Done:
        name = path["pipeline"]
        order, matched = control.submit(system.config, name, action, body.selection(), user=user)
        return Done(
            text=f"{order}: {matched:,} messages",
            page=f"/console/parked/{name}",
            document={
                "id": order, "matched": matched,
                "pipelines_run": status.pipelines_run(system.config.data),
            },
        )  # fmt: skip

    return Action(
        name=f"{action}_parked", path=f"/parked/{{pipeline}}/{action}",
        title="Retry parked messages" if action == "retry" else "Drop parked messages",
        body=Selected, effect=effect, perform=perform, danger=action == "drop",
    )  # fmt: skip
