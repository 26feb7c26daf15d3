"""Pipelines, parked messages and backfills continue after a takeover, on another machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tailrace.testing.receiver import HttpReceiver, HttpRequest, HttpResponse
from tests.command import call
from tests.integration.replica.pair import Pair, bundles, lacking, parked
from tests.jetstream import received, stored
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.testing.nats import EmbeddedNats
    from tests.fix_postgres import Database
    from tests.integration.replica.test_processes import Machine

pytestmark = [pytest.mark.spark, pytest.mark.long]

REFUSED = 7
EVENTS = f"""
CREATE TABLE events (
    pipeline text, id text, commit_lsn bigint, commit_idx bigint, destination text, key text,
    committed_at timestamptz, payload jsonb, arrived bigserial,
    CHECK ((payload #>> '{{after,id}}')::int % {REFUSED} <> 0)
)
"""


class Receiver(HttpReceiver):
    """Refuses one row, until it is `healed`."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.healed = False
        self.accepted: list[int] = []

    def _answer(self, request: HttpRequest) -> HttpResponse:
        number = json.loads(request.body)["after"]["id"]
        if number == REFUSED and not self.healed:
            return HttpResponse(status=422, body=b"no")
        self.accepted.append(number)
        return HttpResponse()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture
def pair(tmp_path: Path, database: Database) -> Iterator[Pair]:
    made = Pair(tmp_path, database)
    yield made
    made.end()


def numbers(machine: Machine, pipeline: str = "hooks") -> list[int]:
    """The rows that are parked on a machine."""
    return [row["id"] for row in parked(machine, pipeline)]


def ids(server: EmbeddedNats, stream: str) -> list[int]:
    return [message.json["after"]["id"] for message in received(server.url, stream)]


def test_pipelines_continue_where_they_were(
    pair: Pair, database: Database, nats_server: EmbeddedNats, receiver: Receiver
) -> None:
    """GIVEN pipelines with a parked message WHEN their machine is lost THEN they continue on the
    other: a stream has each change once, a webhook each change, and the parked message is there
    and can be retried. The old leader gets the state of the new one."""
    stream = {"name": database.name, "subjects": [f"{database.name}.>"]}
    events = {
        "type": "nats", "url": nats_server.url, "stream": stream,
        "subject": f"{database.name}.{{table}}",
    }  # fmt: skip
    hook = {"type": "http", "url": receiver.url, "path": "/{table}", "allow_private": True}
    retry = {"attempts": 2, "first_s": 0.01}
    hooks = {"shape": "plain", "max_open_s": 2.0, "sink": hook, "retry": retry}
    one, other = pair({"events": {"shape": "plain", "sink": events}, "hooks": hooks})
    database.execute("INSERT INTO t SELECT generate_series(1, 20)")
    wait_for(lambda: stored(nats_server.url, database.name) == 20, lambda: one.output[-3000:])
    wait_for(lambda: sorted(receiver.accepted) == [n for n in range(1, 21) if n != REFUSED])
    wait_for(lambda: numbers(one) == [REFUSED])
    wait_for(lambda: bundles(other) == 3 and lacking(one) == 0, other.status)
    before = len(receiver.accepted)
    one.kill()
    database.execute("INSERT INTO t SELECT generate_series(21, 40)")
    wait_for(lambda: "replica.state_adopted" in other.output, lambda: other.output[-3000:])
    wait_for(lambda: stored(nats_server.url, database.name) == 40, lambda: other.output[-3000:])
    assert ids(nats_server, database.name) == list(range(1, 41))
    wait_for(lambda: set(receiver.accepted[before:]) >= set(range(21, 41)))
    assert numbers(other) == [REFUSED]
    receiver.healed = True
    done = call("parked", "retry", "hooks", "--all", "-c", other.folder / "tailrace.yml")
    assert done.returncode == 0, done.stderr
    wait_for(lambda: REFUSED in receiver.accepted)
    wait_for(lambda: numbers(other) == [])
    one.start()
    wait_for(lambda: bundles(one) == 3, lambda: one.output[-3000:])
    wait_for(lambda: other.ready() == 200, other.status)


def test_what_is_parked_is_on_both_machines(pair: Pair, database: Database) -> None:
    """GIVEN a sink that stores its position WHEN its machine is lost as soon as the sink has passed
    a parked message THEN the message is parked on the other machine, and every change is once in
    the sink or parked. The state is copied only because the task asks for it."""
    sink = {"type": "postgres", "dsn": database.socket_dsn, "events": "events"}
    database.execute(EVENTS)
    copies = {"shape": "plain", "max_open_s": 2.0, "sink": sink}
    one, other = pair({"copies": copies}, state_every_s=60.0)
    wait_for(lambda: one.status().get("is_connected"), lambda: one.output[-3000:])
    wait_for(lambda: lacking(one) == 0 and bundles(other) >= 1, other.status)
    database.execute("INSERT INTO t SELECT generate_series(1, 20)")
    wait_for(lambda: stored_rows(database) == [n for n in range(1, 21) if n % REFUSED])
    one.kill()
    database.execute("INSERT INTO t SELECT generate_series(21, 27)")
    wait_for(lambda: "replica.state_adopted" in other.output, lambda: other.output[-3000:])
    # Another message is parked now, which has to be on two machines again.
    one.start()
    wait_for(lambda: 27 in stored_rows(database), lambda: other.output[-3000:])
    assert stored_rows(database) == [n for n in range(1, 28) if n % REFUSED]
    wait_for(lambda: numbers(other, "copies") == [7, 14, 21], lambda: other.output[-3000:])


def stored_rows(database: Database) -> list[int]:
    rows = database.query("SELECT (payload #>> '{after,id}')::int FROM events ORDER BY arrived")
    return [number for (number,) in rows]
