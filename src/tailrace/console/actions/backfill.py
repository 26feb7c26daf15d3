"""Start, pause, resume and cancel backfills, as `tailrace backfill` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from tailrace.backfill import queue
from tailrace.console.page import Action, Body, Done, Effect
from tailrace.postgres.names import TableName
from tailrace.run import status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.backfill.order import DesiredState, Order
    from tailrace.console.system import System

_PAGE = "/console/backfills"
_STATES: dict[str, DesiredState] = {"pause": "pause", "resume": "run", "cancel": "cancel"}
_EFFECTS = {
    "pause": "Reading stops after the present page. Resume continues from there.",
    "resume": "Reading continues after the last page.",
    "cancel": "Reading ends. Pages that were already read are still delivered.",
}


class NewBackfill(Body):
    """Which rows."""

    pipeline: str = Field(min_length=1, max_length=63, description="Pipeline that delivers them.")
    table: str = Field(
        min_length=1, max_length=200, description="Table name as in SQL: orders, sales.orders."
    )
    where: str = Field(
        default="", max_length=2000, description="Condition on the table's columns; empty: all."
    )
    rate: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="Max rows per second. 0: no limit."
    )


class NoBody(Body):
    """Nothing more to say."""


def actions() -> list[Action[Any]]:
    """The actions on backfills."""
    start = Action(
        name="start_backfill", path="/backfills/start", title="Start a backfill",
        body=NewBackfill, effect=_start_effect, perform=_start,
    )  # fmt: skip
    return [start, *(_control(name) for name in _STATES)]


def _start_effect(system: System, path: Mapping[str, str], body: NewBackfill) -> Effect:
    del path
    order = queue.unfinished(system.config, body.pipeline, body.table, body.where)
    if order is not None:
        return Effect(lines=_already(order))
    which = f"the rows of {TableName.parse(body.table)} where {body.where}" if body.where else (
        f"all existing rows of {TableName.parse(body.table)}"
    )  # fmt: skip
    speed = f", at most {body.rate:,g} rows per second" if body.rate else ""
    return Effect(
        lines=(
            f"Pipeline {body.pipeline} delivers {which} with operation read{speed}.",
            "Changes go on meanwhile. A row that has changed since is skipped: its change is in "
            "the stream.",
        )
    )


def _already(order: Order) -> tuple[str, ...]:
    """What a second start of the same rows says."""
    speed = f"at most {order.rate:,g} rows per second" if order.rate else "without a limit"
    state = "It is paused: resume it." if order.desired_state == "pause" else f"It reads {speed}."
    return (f"{order.id} reads these rows and has not finished: no other one is started.", state)


def _start(system: System, path: Mapping[str, str], body: NewBackfill, user: str) -> Done:
    del path
    order = queue.submit(
        system.config, body.pipeline, body.table, where=body.where, rate=body.rate, user=user
    )
    return Done(
        text=f"{order.id}: {order.table} through {body.pipeline}",
        page=_PAGE,
        document={
            "id": order.id, "table": str(order.table), "rate": order.rate,
            "desired_state": order.desired_state,
            "pipelines_run": status.pipelines_run(system.config.data),
        },
    )  # fmt: skip


def _control(action: str) -> Action[NoBody]:
    def effect(system: System, path: Mapping[str, str], body: NoBody) -> Effect:
        del body
        folder, order, record = queue.find_unfinished(system.config, path["id"])
        what = f"{order.id} of {order.table} through {folder.name}, {record.state}."
        return Effect(lines=(what, _EFFECTS[action]))

    def perform(system: System, path: Mapping[str, str], body: NoBody, user: str) -> Done:
        del body
        order = queue.set_desired_state(system.config, path["id"], _STATES[action], user=user)
        return Done(
            text=f"{order.id}: {action}",
            page=_PAGE,
            document={"id": order.id, "desired_state": order.desired_state},
        )

    return Action(
        name=f"{action}_backfill", path=f"/backfills/{{id}}/{action}",
        title=f"{action.capitalize()} a backfill",
        body=NoBody, effect=effect, perform=perform, danger=action == "cancel",
    )  # fmt: skip
