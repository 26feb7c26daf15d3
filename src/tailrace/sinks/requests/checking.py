"""What `tailrace check` asks about the destinations of a sink of requests."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from tailrace.finding import Finding, Severity, error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tailrace.sinks.requests.sink import C, RequestSink


def look_up_each(
    sink: RequestSink[C],
    destinations: Sequence[str],
    kind: str,
    look_up: Callable[[C, str], Iterator[Finding]],
) -> Iterator[Finding]:
    """Why destinations are invalid, and what a look-up says about the others: nothing if they exist
    and fit. `kind` is what a destination is called."""
    flaws = {each: sink.flaw_of(each.encode()) for each in destinations}
    for flaw in flaws.values():
        if flaw is not None:
            yield error(str(flaw).removeprefix("its "), flaw.hint)
    with closing(sink.connect()) as connection:
        for name in dict.fromkeys(sink.resource(each) for each in flaws if flaws[each] is None):
            exists = Finding(severity=Severity.OK, finding=f"the {kind} {name} exists")
            yield from list(look_up(connection, name)) or [exists]
