"""Which messages did a sink not accept, and why?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tailrace.errors import ConfigError, TailraceError
from tailrace.parking import control
from tailrace.parking.selection import Selection
from tailrace.run.query import number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.console.page import Document
    from tailrace.console.system import System
    from tailrace.parking.listing import Listing

    _Page = tuple[list[dict[str, Any]], int | None]
    """Documents of messages, and after which number the next page begins."""

_LIMIT, _MOST = 50, 1000
_MOST_BYTES = 64 << 10
"""Of a payload that the page shows."""
_PAGE_BYTES = 16 << 20


def parked(system: System, query: Mapping[str, str]) -> Document:
    """How many messages of each pipeline are parked: also of those that are no longer configured,
    and why it is unknown of others."""
    del query
    configured = system.config.pipelines
    removed = [name for name in control.stored(system.config.data) if name not in configured]
    return {
        "pipelines": [
            {"pipeline": name, "configured": name in configured, **_totals(system, name)}
            for name in (*configured, *removed)
        ]
    }


def _totals(system: System, name: str) -> dict[str, Any]:
    try:
        with control.listing(system.config, name) as listing:
            return {**asdict(listing.totals()), "error": None}
    except TailraceError as error:
        found = {"code": error.code, "text": str(error), "hint": error.hint}
        return {"messages": None, "held": None, "bytes": None, "error": found}


def parked_messages(system: System, query: Mapping[str, str]) -> Document:
    """A page of the parked messages of a pipeline."""
    name = query["pipeline"]
    after, limit = number(query, "after", 0), number(query, "limit", _LIMIT, _MOST)
    selection = selection_of(query)
    whole = query.get("whole") == "true"
    with control.listing(system.config, name) as listing:
        read = _with_payloads if whole else _without_payloads
        messages, following = read(listing, selection, after, limit)
        return {
            "pipeline": name,
            "filter": control.document_of(selection),
            # An export reads many pages: counting what is left for each would take longer.
            "matched": len(messages) if whole else listing.count(selection),
            "totals": asdict(listing.totals()),
            "messages": messages,
            "next": following,
            "orders": [asdict(each) for each in listing.orders()],
        }


def _without_payloads(listing: Listing, selection: Selection, after: int, limit: int) -> _Page:
    found = listing.page(selection, after=after, limit=limit + 1)
    page = found[:limit]
    messages = [control.message_document(each) for each in page]
    return messages, page[-1].seq if len(found) > limit and page else None


def _with_payloads(listing: Listing, selection: Selection, after: int, limit: int) -> _Page:
    """Payloads in full; the page ends when they are large."""
    messages: list[dict[str, Any]] = []
    size = 0
    found = listing.page(selection, after=after, limit=limit)
    for each in found:
        payload = listing.payload(each.seq)
        if payload is not None:
            messages.append(control.message_document(each, payload))
            size += len(payload)
        after = each.seq
        if size >= _PAGE_BYTES:
            return messages, after
    return messages, after if len(found) == limit else None


def parked_message(system: System, query: Mapping[str, str]) -> Document:
    """One parked message, with its payload: the beginning of it, unless `whole` is asked for."""
    name, seq = query["pipeline"], number(query, "number", 0)
    with control.listing(system.config, name) as listing:
        page = listing.page(Selection(upto=seq), after=seq - 1, limit=1)
        payload = listing.payload(seq) if page else None
        if not page or payload is None:
            raise ConfigError(
                f"there is no parked message {seq}", hint="It may have been delivered."
            )
        part = payload if query.get("whole") == "true" else payload[:_MOST_BYTES]
        shown: dict[str, Any] = control.message_document(page[0], part)
        return {"pipeline": name, "message": shown, "cut": len(part) < len(payload)}


def selection_of(query: Mapping[str, str]) -> Selection:
    """The filter of a list. An empty field of the form filters nothing."""
    return Selection(
        ids=(query["id"],) if query.get("id") else (),
        key=query.get("key") or None,
        destination=query.get("destination", ""),
        code=query.get("code", ""),
    )
