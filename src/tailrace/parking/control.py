"""What operators see of parked messages, and what they can have done: for commands and HTTP.

Lists are read from the store. Orders are files, which the pipeline carries out while it runs.
"""

from __future__ import annotations

import base64
import difflib
import getpass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tailrace import audit
from tailrace.errors import ConfigError
from tailrace.parking.listing import Listing
from tailrace.parking.order import Orders
from tailrace.parking.parking import folder_of, store_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.config import Config
    from tailrace.parking.listing import ParkedMessage
    from tailrace.parking.order import Action, Order
    from tailrace.parking.selection import Selection

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PAGE = 1000


def listing(config: Config, pipeline: str) -> Listing:
    """The parked messages of a pipeline."""
    return Listing(store_of(_folder(config, pipeline)))


def stored(data: Path) -> list[str]:
    """The pipelines of which the data folder has parked messages, or had."""
    folder = folder_of(data, "x").parent
    return sorted(path.name for path in folder.glob("*") if store_of(path).exists())


def _folder(config: Config, pipeline: str) -> Path:
    folder = folder_of(config.data, pipeline)
    # A name of a request is compared and not opened: it can be `..`, or too long for a file.
    if pipeline not in config.pipelines and pipeline not in stored(config.data):
        close = difflib.get_close_matches(pipeline, config.pipelines, n=1)
        known = ", ".join(config.pipelines) or "none"
        hint = f"Did you mean {close[0]}?" if close else f"Configured pipelines: {known}."
        raise ConfigError(f"there is no pipeline {pipeline!r}", hint=hint)
    return folder


def submit(
    config: Config, pipeline: str, action: Action, selection: Selection, *, user: str = ""
) -> tuple[str, int]:
    """Have messages retried or dropped that are parked now, or up to the selection's last number.
    Returns the order's id and a count.

    Retries of a key include its other parked messages, so that its order is kept; the count does
    not.
    """
    user = user or getpass.getuser()
    folder = _folder(config, pipeline)
    with listing(config, pipeline) as parked:
        limited = selection.limited(parked.last())
        matched = parked.count(limited)
    if not matched:
        raise ConfigError(
            "no parked message matches",
            hint=f"List them: tailrace parked ls {pipeline}",
        )

    def record(order: Order) -> None:
        audit.record(
            config.data,
            f"parked.{action}",
            user=user,
            pipeline=pipeline,
            order=order.id,
            matched=matched,
            selection=document_of(selection),
        )

    orders = Orders(folder / "orders")
    return orders.submit(action, limited, user=user, before=record).id, matched


def document_of(selection: Selection) -> dict[str, Any]:
    """A selection as JSON: what is set."""
    values = {
        "ids": list(selection.ids),
        "key": selection.key,
        "destination": selection.destination,
        "code": selection.code,
    }
    return {name: value for name, value in values.items() if value}


def message_document(message: ParkedMessage, payload: bytes | None = None) -> dict[str, Any]:
    """A parked message as JSON."""
    document: dict[str, Any] = {
        "number": message.seq,
        "id": message.id,
        "destination": message.destination,
        **text_field("key", message.key),
        "bytes": message.bytes,
        "state": "retrying" if message.wanted else "held" if message.held else "parked",
        "attempts": message.attempts,
        "committed_at": time_text(message.committed_at),
        "parked_at": time_text(message.parked_at),
        "last_at": time_text(message.last_at),
        "first_error": {"code": message.first_code, "reason": message.first_reason},
        "last_error": {
            "code": message.code,
            "reason": message.reason,
            "hint": message.hint,
            "response": message.response,
        },
    }
    return document if payload is None else document | text_field("payload", payload)


def text_field(name: str, value: bytes | None) -> dict[str, str | None]:
    """A member of a document. Bytes that are not UTF-8 are in Base64, under another name."""
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value or b"").decode()}


def time_text(us: int) -> str:
    """Microseconds since 1970 as ISO 8601."""
    return (_EPOCH + timedelta(microseconds=us)).isoformat()


def export(parked: Listing, selection: Selection) -> Iterator[dict[str, Any]]:
    """The selected messages with their payloads, in the order of parking."""
    after = 0
    while page := parked.page(selection, after=after, limit=_PAGE):
        for message in page:
            payload = parked.payload(message.seq)
            # It may have been delivered since.
            if payload is not None:
                yield message_document(message, payload)
        after = page[-1].seq
