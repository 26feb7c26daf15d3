"""Apply a changed settings file, as `tailrace apply` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from tailrace.console.page import Action, Done, Effect, Reasoned
from tailrace.errors import ConfigError
from tailrace.run.applying import check_runs
from tailrace.run.plan import propose
from tailrace.run.plan_text import plan_lines
from tailrace.run.reloads import order_reload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.console.system import System
    from tailrace.run.plan import Plan

_PAGE = "/console/settings"


class Apply(Reasoned):
    """Which plan."""

    resolved: ClassVar[frozenset[str]] = frozenset({"plan"})

    plan: str = Field(
        default="",
        max_length=64,
        description="`digest` of the plan. Another one is refused. Empty: what the file says now.",
    )


def actions() -> list[Action[Any]]:
    """The action on the settings."""
    return [
        Action(
            name="apply_settings", path="/settings/apply", title="Apply the settings file",
            body=Apply, effect=_effect, perform=_apply,
        )
    ]  # fmt: skip


def _effect(system: System, path: Mapping[str, str], body: Apply) -> Effect:
    del path
    plan = _plan(system, body)
    interrupted = "serve" in plan.processes
    return Effect(
        lines=tuple(plan_lines(plan)),
        warning="The console restarts, too: log in again afterwards." if interrupted else "",
        resolved={"plan": plan.digest},
    )


def _apply(system: System, path: Mapping[str, str], body: Apply, user: str) -> Done:
    del path
    plan = _plan(system, body)
    order = order_reload(system.config.data, plan, user=user, reason=body.reason)
    return Done(
        text="The settings file is being loaded",
        page=_PAGE,
        document={"order": order.number, "restarts": list(plan.processes), "digest": plan.digest},
    )


def _plan(system: System, body: Apply) -> Plan:
    """The plan, if it can be applied. Raises ConfigError."""
    check_runs(system.config.data)
    _, plan = propose(system.config.data)
    if not plan.objects:
        raise ConfigError("the settings file has the settings that run: nothing to apply")
    if body.plan not in ("", plan.digest):
        raise ConfigError(
            "the settings file has changed since the plan was shown",
            hint="Look at the page Settings again.",
        )
    plan.check()
    return plan
