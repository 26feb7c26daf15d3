"""Which log the documents of a pipeline come from.

Positions of another log, after a restore or with another database, may be lower than those that
documents already have: every change would be taken for one that is already there. A document of the
index `histories` therefore names the log of each pipeline and its *generation*, which is part of
every version (`versions`). A pipeline with another log stops; after `tailrace reset` it begins the
next generation, whose versions are higher than all before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from tailrace.checkpoint import RESET
from tailrace.errors import DivergedError, SinkRefusedError, SinkUnreachableError
from tailrace.sinks.search.versions import GENERATIONS

if TYPE_CHECKING:
    from tailrace.sinks.contract import Lane
    from tailrace.sinks.search.client import Client

_ATTEMPTS = 10


def find_generation(client: Client, index: str, lane: Lane) -> int:
    """The generation of a pipeline's log. Begins one if the pipeline or its log is new.

    All lanes of a pipeline do this at once; the server lets one of them write.
    """
    log = lane.history.partition("+")[0]
    target = f"/{index}/_doc/{quote(lane.owner, safe='')}"
    for _ in range(_ATTEMPTS):
        answer = client.ask("GET", target)
        found = answer.json() or {}
        if answer.status == 404:
            generation, condition = 0, "op_type=create"
        elif answer.status != 200 or "_source" not in found:
            raise client.unexpected(answer, f"a request for {target}")
        elif found["_source"]["log"] == log:
            return int(found["_source"]["generation"])
        else:
            generation = _next(found["_source"], lane, log)
            condition = f"if_seq_no={found['_seq_no']}&if_primary_term={found['_primary_term']}"
        written = client.ask("PUT", f"{target}?{condition}", {"log": log, "generation": generation})
        if written.status in (200, 201):
            return generation
        if written.status != 409:
            raise client.unexpected(written, f"an update of {target}")
    raise SinkUnreachableError(f"{target} is changed by others all the time")


def _next(stored: dict[str, object], lane: Lane, log: str) -> int:
    if not lane.reset:
        raise DivergedError(
            f"the documents of pipeline {lane.pipeline} are of the log {stored['log']}, but this "
            f"log is {log or 'without an id'}",
            hint=RESET,
        )
    generation = int(str(stored["generation"])) + 1
    if generation >= GENERATIONS:
        raise SinkRefusedError(
            f"pipeline {lane.pipeline} has had {GENERATIONS} logs",
            hint="Set `index` and `histories` of the sink to new names, and backfill the tables.",
        )
    return generation
