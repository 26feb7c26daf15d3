"""Give up readers of the log, as `tailrace log unpin` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace import audit
from tailrace.console.page import Action, Done, Effect, Reasoned
from tailrace.errors import ConfigError
from tailrace.log import retention
from tailrace.log.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.console.system import System


def actions() -> list[Action[Any]]:
    """The actions on the log."""
    return [
        Action(
            name="unpin", path="/log/pins/{reader}/unpin", title="Give up a reader",
            body=Reasoned, effect=_effect, perform=_perform, danger=True,
        )
    ]  # fmt: skip


def _pin(store: LocalStore, name: str) -> retention.Pin:
    pins = retention.read_pins(store)
    if name not in pins:
        there = ", ".join(sorted(pins)) or "none"
        raise ConfigError(f"there is no pin {name!r}", hint=f"There are: {there}.")
    return pins[name]


def _effect(system: System, path: Mapping[str, str], body: Reasoned) -> Effect:
    del body
    name = path["reader"]
    pin = _pin(LocalStore(system.config.log.path), name)
    return Effect(
        lines=(
            f"{name} has not read the changes after {pin.position}.",
            "The log no longer keeps them for it. A reader that still runs renews its pin within "
            "a second.",
        ),
        warning="Changes that retention then deletes are lost to this reader.",
    )


def _perform(system: System, path: Mapping[str, str], body: Reasoned, user: str) -> Done:
    name, store = path["reader"], LocalStore(system.config.log.path)
    pin = _pin(store, name)
    # A log alone, as `--log` names it, has no data folder.
    if system.config.data.exists():
        audit.record(
            system.config.data, "log.unpin", user=user, reader=name, position=str(pin.position),
            reason=body.reason,
        )  # fmt: skip
    retention.unpin(store, name)
    return Done(
        text=f"{name} has no pin any more",
        page="/console/log",
        document={"reader": name, "position": str(pin.position)},
    )
