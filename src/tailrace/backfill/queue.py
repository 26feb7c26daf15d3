"""The queue of backfills: commands, the HTTP API and the settings submit orders to it.

Orders are files in the data folder. The backfill service of the running pipelines finds them there,
also after a restart. This module does not run backfills.
"""

from __future__ import annotations

import difflib
import getpass
import hashlib
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tailrace import audit
from tailrace.backfill.order import FINISHED, Order, Record
from tailrace.errors import ConfigError
from tailrace.file_lock import locked
from tailrace.observe.figure import document
from tailrace.postgres.condition import checked
from tailrace.postgres.names import TableName
from tailrace.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tailrace.backfill.order import DesiredState
    from tailrace.config import Config


_ACTIONS: dict[DesiredState, str] = {"run": "resume", "pause": "pause", "cancel": "cancel"}


def submit(
    config: Config,
    pipeline: str,
    table: str,
    *,
    where: str = "",
    rate: float = 0.0,
    again: str = "",
    user: str = "",
) -> Order:
    """Request a backfill. An unfinished order for the same rows is returned instead of a new one.

    `again` is a reason to read the rows again: it always creates a new order. `user` is for the
    audit file; empty: the user of this process.
    """
    name = _table(config, pipeline, table)
    if not 0 <= rate < math.inf:
        raise ConfigError(f"rate must be 0 or more rows per second, got {rate}")
    checked(where)
    folder = folder_of(config, pipeline)
    with _lock(folder):
        orders = Order.load(folder)
        same = None if again else _same(folder, orders, name, where)
        if same is not None:
            return same
        order = Order(id=_new_id(orders), table=name, where=where, rate=rate, reason=again)
        audit.record(
            config.data, "backfill.start", user=user or getpass.getuser(), pipeline=pipeline,
            backfill=order.id, table=str(name), where=where, rate=rate,
        )  # fmt: skip
        order.save(folder)
    return order


def unfinished(config: Config, pipeline: str, table: str, where: str) -> Order | None:
    """The order that `submit` would return instead of a new one. Raises ConfigError as it does."""
    name, folder = _table(config, pipeline, table), folder_of(config, pipeline)
    checked(where)
    return _same(folder, Order.load(folder), name, where)


def _same(folder: Path, orders: list[Order], table: TableName, where: str) -> Order | None:
    """An order for the same rows that is not finished and not cancelled."""
    records = Record.load(folder)
    for order in orders:
        finished = order.id in records and records[order.id].state in FINISHED
        same_rows = (order.table, order.where) == (table, where)
        if same_rows and not finished and order.desired_state != "cancel":
            return order
    return None


def _lock(folder: Path) -> AbstractContextManager[None]:
    return locked(folder / "lock")


def _new_id(orders: list[Order]) -> str:
    """The time in milliseconds, or the next number that no order has."""
    number = time.time_ns() // 1_000_000
    while any(order.id == f"fill-{number}" for order in orders):
        number += 1
    return f"fill-{number}"


def submit_configured(config: Config, pipeline: str) -> None:
    """Request the backfills of the settings, each once: its id is a hash of table and condition."""
    folder = folder_of(config, pipeline)
    known = {order.id for order in Order.load(folder)}
    for configured in config.pipelines[pipeline].backfill.tables:
        name = _table(config, pipeline, configured.table)
        digest = hashlib.sha256(f"{name.quoted}\0{configured.where}".encode()).hexdigest()[:12]
        if f"config-{digest}" not in known:
            Order(
                id=f"config-{digest}", table=name, where=configured.where, rate=configured.rate
            ).save(folder)


def set_desired_state(
    config: Config,
    id: str,  # noqa: A002 - its name
    state: DesiredState,
    *,
    user: str = "",
) -> Order:
    """Pause, resume or cancel a backfill that has not finished. `user` as in `submit`."""
    folder, order, _ = find_unfinished(config, id)
    changed = replace(order, desired_state=state)
    with _lock(folder):
        audit.record(
            config.data, f"backfill.{_ACTIONS[state]}", user=user or getpass.getuser(),
            pipeline=folder.name, backfill=id,
        )  # fmt: skip
        changed.save(folder)
    return changed


def find_unfinished(
    config: Config,
    id: str,  # noqa: A002 - its name
) -> tuple[Path, Order, Record]:
    """A backfill that has not finished, with the folder of its pipeline. Raises ConfigError."""
    known = []
    for folder, order, record in _all(config):
        known.append(order.id)
        if order.id == id:
            if record.state in FINISHED:
                raise ConfigError(
                    f"backfill {id} has already finished: its state is {record.state}"
                )
            return folder, order, record
    close = difflib.get_close_matches(id, known, n=1)
    hint = f"Did you mean {close[0]}?" if close else "List the backfills: tailrace backfills"
    raise ConfigError(f"there is no backfill {id}", hint=hint)


def list_backfills(config: Config) -> list[dict[str, Any]]:
    """All backfills with their progress, oldest first per pipeline."""
    now = time.time()
    return [
        {"where": order.where, "rate": order.rate, "desired_state": order.desired_state}
        | document(record.progress(folder.name, now))
        for folder, order, record in _all(config)
    ]


def _all(config: Config) -> Iterator[tuple[Path, Order, Record]]:
    for pipeline in config.pipelines:
        folder = folder_of(config, pipeline)
        records = Record.load(folder)
        for order in Order.load(folder):
            yield folder, order, records.get(order.id) or Record(id=order.id, table=order.table)


def folder_of(config: Config, pipeline: str) -> Path:
    """The orders and records of a pipeline."""
    return config.data / "backfills" / pipeline


def _table(config: Config, pipeline: str, table: str) -> TableName:
    if pipeline not in config.pipelines:
        names = ", ".join(config.pipelines) or "none"
        raise ConfigError(
            f"there is no pipeline {pipeline!r}", hint=f"Configured pipelines: {names}."
        )
    name = TableName.parse(table)
    if not Tables(config.pipelines[pipeline].tables).match(name.namespace, name.name):
        raise ConfigError(
            f"{name} is not among the tables of pipeline {pipeline}",
            hint=f"Add it to pipelines.{pipeline}.tables.",
        )
    return name
