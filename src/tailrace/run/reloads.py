"""Reloads of a running system: ordered by SIGHUP, by `tailrace apply` or in the console.

A reload loads the settings file, compares it with what runs, and is carried out as its plan says or
not at all. What runs is then in `run.loaded`, with the number of the order, or why it was refused.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from tailrace import audit
from tailrace.config.pinned import Pin
from tailrace.errors import ConfigError, TailraceError
from tailrace.run.loaded import (
    Digests,
    Loaded,
    Order,
    last_order,
    loaded_file,
    loaded_now,
    order_file,
)
from tailrace.run.plan import plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.config import Config
    from tailrace.config.document import KeyPath
    from tailrace.run.plan import Plan


class Reloads:
    """Loads the settings file again, for the supervisor. `load` raises TailraceError."""

    def __init__(
        self,
        file: Path,
        data: Path,
        load: Callable[[], Config],
        *,
        overridden: tuple[KeyPath, ...] = (),
    ) -> None:
        self._file = file
        self._data = data
        self._load = load
        self._overridden = overridden
        self._state = loaded_file(data)
        self._orders = order_file(data)
        self._digests: Digests | None = None
        self._loaded: Loaded | None = None
        self.pin: Pin | None = None
        """What the processes read, also one that is restarted while the file is edited."""

    def begin(self, config: Config) -> None:
        """Record the settings with which the processes start."""
        again, pin = self._read()
        if again != config:
            raise self._changed()
        self.pin = pin
        try:
            # An order from before has no effect: the file was read just now.
            self._record(config, orders=self._order().number)
        except TailraceError as error:
            # A full disk must not keep the system from starting; capture waits for space.
            structlog.get_logger().error(
                "run.settings_not_recorded", code=error.code, reason=str(error), hint=error.hint
            )

    def ordered(self) -> bool:
        """Whether there is an order that was not carried out yet."""
        return self._loaded is not None and self._order().number > self._loaded.orders

    def reload(self) -> frozenset[str]:
        """Load the settings; the processes to restart. Raises TailraceError: nothing changes."""
        order = self._order()
        try:
            config, pin = self._read()
            try:
                names = self._compared(config, order)
                self._record(config, orders=order.number)
            except TailraceError:
                pin.close()
                raise
        except TailraceError as error:
            self._refuse(order, error)
            raise
        before, self.pin = self.pin, pin
        if before is not None:
            before.close()
        return names

    def _read(self) -> tuple[Config, Pin]:
        """The settings of the file, and its content."""
        try:
            content = self._file.read_bytes()
            config = self._load()
            if self._file.read_bytes() != content:
                raise self._changed()
        except OSError as error:
            raise ConfigError(f"cannot read {self._file}: {error.strerror}") from error
        return config, Pin(self._file, content)

    def _changed(self) -> ConfigError:
        return ConfigError(f"{self._file} was changed while it was read", hint="Retry.")

    def _compared(self, config: Config, order: Order) -> frozenset[str]:
        if self._loaded is None or self._digests is None:
            # Unknown since the start, on a full disk: as before any reload, all of it is new.
            return frozenset()
        found = plan(self._loaded, config, self._file, self._digests, self._data)
        found.check()
        if order.number > self._loaded.orders and order.digest not in ("", found.digest):
            raise ConfigError(
                f"{self._file} is not what the plan has shown",
                hint="It was changed since, or its variables have other values for `tailrace "
                "run`. Look at the plan again.",
            )
        return frozenset(found.processes)

    def _record(self, config: Config, *, orders: int) -> None:
        digests = self._digests or Digests.create(self._data)
        now = datetime.now(UTC)
        loaded = loaded_now(config, digests, file=self._file, at=now, overridden=self._overridden)
        loaded = replace(loaded, orders=orders)
        self._state.write(loaded)
        self._digests, self._loaded = digests, loaded

    def _refuse(self, order: Order, error: TailraceError) -> None:
        if self._loaded is None:
            return
        loaded = replace(self._loaded, orders=order.number, refusal=str(error), hint=error.hint)
        self._loaded = loaded
        try:
            self._state.write(loaded)
        except TailraceError as failed:
            structlog.get_logger().error(
                "run.settings_not_recorded", code=failed.code, reason=str(failed)
            )

    def _order(self) -> Order:
        return self._orders.read_or(Order())


def order_reload(data: Path, proposed: Plan, *, user: str, reason: str = "") -> Order:
    """Order that the settings of a plan are loaded. Raises ConfigError if it would be refused."""
    proposed.check()
    file = order_file(data)
    changes = [f"{each.title} {each.action}" for each in proposed.objects]
    with file.exclusive():
        number = last_order(data) + 1
        order = Order(number=number, digest=proposed.digest, user=user, reason=reason)
        audit.record(
            data, "settings.apply", user=user, reason=reason, changes=changes,
            restarts=list(proposed.processes),
        )  # fmt: skip
        file.write(order)
    return order
