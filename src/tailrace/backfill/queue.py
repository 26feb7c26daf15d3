"""Orders for backfills: by command, over HTTP, from the settings. The running engine finds them."""

from __future__ import annotations

import difflib
import hashlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tailrace.backfill.order import OVER, Order, Record
from tailrace.errors import ConfigError
from tailrace.observe.figure import document
from tailrace.postgres.publication import TableName
from tailrace.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.backfill.order import Wish
    from tailrace.config import Config


def place(
    config: Config,
    pipeline: str,
    table: str,
    *,
    where: str = "",
    rate: float = 0.0,
    again: str = "",
) -> Order:
    """Ask for a backfill; one for the same rows that is not over yet is taken instead.

    `again` says why not: rows that are read by now have changed since.
    """
    name = _table(config, pipeline, table)
    if rate < 0:
        raise ConfigError(f"a rate of {rate} rows a second is less than none")
    folder = _folder(config, pipeline)
    records = Record.load(folder)
    for order in Order.load(folder):
        over = order.id in records and records[order.id].state in OVER
        same = (order.table, order.where) == (name, where)
        if same and not over and not again and order.wish != "cancel":
            return order
    order = Order(
        id=f"fill-{time.time_ns() // 1_000_000}", table=name, where=where, rate=rate, reason=again
    )
    order.save(folder)
    return order


def place_configured(config: Config, pipeline: str) -> None:
    """Ask for the backfills of the settings that were never asked for before."""
    folder = _folder(config, pipeline)
    known = {order.id for order in Order.load(folder)}
    for wanted in config.pipelines[pipeline].backfill.tables:
        name = _table(config, pipeline, wanted.table)
        digest = hashlib.sha256(f"{name.quoted}\0{wanted.where}".encode()).hexdigest()[:12]
        if f"config-{digest}" not in known:
            Order(id=f"config-{digest}", table=name, where=wanted.where, rate=wanted.rate).save(
                folder
            )


def wish(config: Config, id: str, wanted: Wish) -> Order:  # noqa: A002 - that is its name
    """Pause a backfill, let it run again, or cancel it."""
    known = []
    for folder, order, record in _all(config):
        known.append(order.id)
        if order.id == id:
            if record.state in OVER:
                raise ConfigError(f"backfill {id} is over: it is {record.state}")
            changed = replace(order, wish=wanted)
            changed.save(folder)
            return changed
    close = difflib.get_close_matches(id, known, n=1)
    hint = f"Did you mean {close[0]}?" if close else "`tailrace backfills` lists them."
    raise ConfigError(f"there is no backfill {id}", hint=hint)


def listing(config: Config) -> list[dict[str, Any]]:
    """All backfills, oldest first."""
    return [
        {"where": order.where, "rate": order.rate, "wish": order.wish}
        | document(record.progress(folder.name))
        for folder, order, record in _all(config)
    ]


def _all(config: Config) -> Iterator[tuple[Path, Order, Record]]:
    for pipeline in config.pipelines:
        folder = _folder(config, pipeline)
        records = Record.load(folder)
        for order in Order.load(folder):
            yield folder, order, records.get(order.id) or Record(id=order.id, table=order.table)


def _folder(config: Config, pipeline: str) -> Path:
    return config.data / "backfills" / pipeline


def _table(config: Config, pipeline: str, table: str) -> TableName:
    if pipeline not in config.pipelines:
        names = ", ".join(config.pipelines) or "none"
        raise ConfigError(f"there is no pipeline {pipeline!r}", hint=f"There are {names}.")
    name = TableName.parse(table)
    if not Tables(config.pipelines[pipeline].tables).match(name.namespace, name.name):
        raise ConfigError(
            f"{name} is not among the tables of pipeline {pipeline}",
            hint=f"Add it to pipelines.{pipeline}.tables.",
        )
    return name
