"""Reading back from a cluster, where a consumer may run on a replica that lags."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tailrace.errors import SinkUnreachableError
from tailrace.jetstream.bulk import read_back as module
from tailrace.jetstream.protocol import Message
from tailrace.position import ORIGIN
from tests.unit.sinks.rows import message_id

ALL = (1, 10)


class Replica:
    """A connection: the leader has `leader` messages, the consumer sees up to each of `seen`."""

    def __init__(self, leader: set[int], *seen: int) -> None:
        self.leader = leader
        self.seen = list(seen)
        self.delivered = 0

    def request(self, subject: str, body: Any = None) -> dict[str, Any]:
        if ".MSG.GET." not in subject:
            return {}
        sequence = min((each for each in self.leader if each >= body["seq"]), default=None)
        if sequence is None:
            return {"error": {"code": 404, "err_code": 10037}}
        header = base64.b64encode(self._header(sequence)).decode()
        return {"message": {"seq": sequence, "subject": "cdc.t", "hdrs": header}}

    def pull(self, _subject: str, _most: int) -> list[Message]:
        upto = self.seen.pop(0) if self.seen else self.delivered
        found = [each for each in sorted(self.leader) if self.delivered < each <= upto]
        self.delivered = max(self.delivered, upto)
        return [
            Message(
                subject=b"cdc.t", reply=b"$JS.ACK.CDC.c.1.%d.%d.0.0" % (each, each),
                header=self._header(each),
            )
            for each in found
        ]  # fmt: skip

    def _header(self, sequence: int) -> bytes:
        return b"NATS/1.0\r\nNats-Msg-Id: %s\r\n\r\n" % message_id(sequence)


def read(line: Replica) -> int:
    return len(module.read_back(line, module.OwnSubjects("CDC"), ALL, after=ORIGIN))  # type: ignore[arg-type]


def test_messages_of_the_leader_are_waited_for() -> None:
    assert read(Replica(set(range(1, 11)), 3, 3, 8, 8, 8, 10)) == 10


def test_deleted_messages_are_not_waited_for() -> None:
    assert read(Replica(set(range(1, 9)), 8)) == 8
    assert read(Replica({*range(1, 9), 11, 12}, 8)) == 8


def test_a_replica_that_keeps_lagging_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_LAG_S", 0.1)
    with pytest.raises(SinkUnreachableError, match="no message 9 yet"):
        read(Replica(set(range(1, 11)), 8))


def test_ids_after_a_sequence_are_those_of_one_subject() -> None:
    asked: list[Any] = []

    class Watched(Replica):
        def request(self, subject: str, body: Any = None) -> dict[str, Any]:
            asked.append(body)
            return super().request(subject, body)

    line = Watched(set(range(1, 11)), 4, 4, 10)
    line.delivered = 3
    found = list(module.ids(line, "CDC", "cdc.t", (4, 10)))  # type: ignore[arg-type]
    assert found == [message_id(number) for number in range(4, 11)]
    assert asked[0]["config"]["opt_start_seq"] == 4
    assert asked[0]["config"]["filter_subject"] == "cdc.t"
    # Whether the replica has all messages is asked for this subject only.
    assert {body["next_by_subj"] for body in asked if body and "seq" in body} == {"cdc.t"}


def test_no_ids_after_the_last_message() -> None:
    assert list(module.ids(Replica(set()), "CDC", "cdc.t", (11, 10))) == []  # type: ignore[arg-type]
