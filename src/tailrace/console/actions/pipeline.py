"""Pause, resume, restart, rewind and skip, as `tailrace pipeline` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from tailrace.console.page import Action, Done, Effect, Reasoned
from tailrace.control import ControlFile
from tailrace.pipeline.moves import order_move, plan_move
from tailrace.run import status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.console.system import System
    from tailrace.control import MoveAction

_EFFECTS = {
    "pause": (
        "The present micro-batch of {name} ends in order, and {name} stops delivering until it is "
        "resumed, also over restarts.",
        "The log keeps what is not delivered. Other pipelines continue.",
    ),
    "resume": ("{name} continues delivering where it was paused.",),
    "restart": (
        "The query of {name} stops in order and starts again, also if it has failed.",
        "It resumes at its checkpoint: nothing is lost. Settings are not read again.",
    ),
}
_TITLES = {"pause": "Pause", "resume": "Resume", "restart": "Restart"}


class MoveTo(Reasoned):
    """Where to continue."""

    to: str = Field(
        min_length=1,
        max_length=100,
        description="earliest, now, an LSN such as 16/B374D848, a time such as "
        "2026-01-31T12:00:00Z, or the id of the last event before.",
    )


def actions() -> list[Action[Any]]:
    """The actions of a pipeline."""
    return [*(_control(name) for name in _EFFECTS), _move("rewind"), _move("skip")]


def _control(action: str) -> Action[Reasoned]:
    def effect(system: System, path: Mapping[str, str], body: Reasoned) -> Effect:
        del body
        system.pipeline(path["pipeline"])
        lines = [line.format(name=path["pipeline"]) for line in _EFFECTS[action]]
        return Effect(lines=(*lines, *_waiting(system)))

    def perform(system: System, path: Mapping[str, str], body: Reasoned, user: str) -> Done:
        name = path["pipeline"]
        system.pipeline(name)
        order = getattr(ControlFile(system.config.data, name), action)
        order(user=user, reason=body.reason)
        return Done(
            text=f"{name}: {action}",
            page=f"/console/pipelines/{name}",
            document={"pipeline": name, "action": action, "pipelines_run": _run(system)},
        )

    return Action(
        name=action, path=f"/pipelines/{{pipeline}}/{action}", title=_TITLES[action],
        body=Reasoned, effect=effect, perform=perform,
    )  # fmt: skip


def _move(action: MoveAction) -> Action[MoveTo]:
    def effect(system: System, path: Mapping[str, str], body: MoveTo) -> Effect:
        system.pipeline(path["pipeline"])
        move = plan_move(system.config, path["pipeline"], action, body.to)
        warning = (
            "Skipped changes never reach the sink, unless the pipeline is rewound."
            if action == "skip"
            else "Consumers receive these changes again."
        )
        continued = f"{path['pipeline']} continues after {move.to}."
        # The log and the pipeline go on: "now" must not be a later one when it is confirmed.
        return Effect(
            lines=(*move.lines(), continued, *_waiting(system)), warning=warning,
            resolved={"to": str(move.to)},
        )  # fmt: skip

    def perform(system: System, path: Mapping[str, str], body: MoveTo, user: str) -> Done:
        name = path["pipeline"]
        system.pipeline(name)
        move = plan_move(system.config, name, action, body.to)
        ordered = order_move(system.config, move, user=user, reason=body.reason)
        return Done(
            text=f"{name} is asked to continue after {move.to}",
            page=f"/console/pipelines/{name}",
            document={
                "pipeline": name, "action": action, "position": str(move.to),
                "repeated": move.plan.repeated, "skipped": move.plan.skipped,
                "moves": ordered.moves, "pipelines_run": _run(system),
            },
        )  # fmt: skip

    return Action(
        name=action, path=f"/pipelines/{{pipeline}}/{action}",
        title="Rewind" if action == "rewind" else "Skip",
        body=MoveTo, effect=effect, perform=perform, danger=True,
    )  # fmt: skip


def _run(system: System) -> bool:
    return status.pipelines_run(system.config.data)


def _waiting(system: System) -> tuple[str, ...]:
    if _run(system):
        return ()
    return ("No pipelines run on this data folder at present. It takes effect when they do.",)
