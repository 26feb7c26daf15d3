"""Services of AWS that fail entries and requests while processes are killed.

As `test_parking`, with requests of many messages that are accepted in part: in the end each change
was accepted or is parked, and no counter was ever accepted before a smaller one.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.testing import HttpRequest, HttpResponse
from tests.faults import soak
from tests.faults.path import System
from tests.faults.test_parking import CI_KILLS, TABLES, Receiver, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.test_parking import Change
    from tests.fix_postgres import Database

    Entry = dict[str, Any]

pytestmark = pytest.mark.long


class Service(Receiver):
    """SQS and Kinesis. Of 100 requests, 2 are lost before they arrive, 2 after, 2 are throttled and
    2 fail. 5 % of entries fail for now, and those of certain changes for good."""

    def _answered(self, request: HttpRequest) -> HttpResponse:
        operation = request.headers["x-amz-target"].rpartition(".")[2]
        if operation.startswith("List"):
            return _answer({})
        call = json.loads(request.body)
        with self._accepting:
            chance = 1.0 if self.healed else self._rng.random()
            if chance < 0.02:
                return HttpResponse(status=0)
            if chance < 0.04:
                return _answer({"__type": "RequestThrottled"}, status=400)
            if chance < 0.06:
                return _answer({"__type": "InternalFailure"}, status=500)
            sent = {"SendMessageBatch": self._queued, "PutRecords": self._put}[operation]
            answer = sent(call)
        return HttpResponse(status=0) if chance < 0.08 else _answer(answer)

    def _queued(self, call: Entry) -> Entry:
        name = call["QueueUrl"].rpartition("/")[2].removesuffix(".fifo")
        results: dict[str, list[Entry]] = {"Successful": [], "Failed": []}
        for entry in call["Entries"]:
            change = change_of(entry["MessageBody"])
            refused = self.refuses(change)
            if refused or self._fails():
                failed = {"Id": entry["Id"], "Code": "Whatever", "SenderFault": refused}
                results["Failed"].append(failed)
            else:
                self.accepted[f"/{name}"].append(change)
                results["Successful"].append({"Id": entry["Id"]})
        return results

    def _put(self, call: Entry) -> Entry:
        results = []
        for record in call["Records"]:
            change = change_of(base64.b64decode(record["Data"]))
            if self.refuses(change) or self._fails():
                results.append({"ErrorCode": "InternalFailure"})
            else:
                self.accepted[f"/{call['StreamName']}"].append(change)
                results.append({"SequenceNumber": "1", "ShardId": "shardId-0"})
        failed = sum("ErrorCode" in each for each in results)
        return {"FailedRecordCount": failed, "Records": results}

    def _fails(self) -> bool:
        return not self.healed and self._rng.random() < 0.05


def change_of(message: str | bytes) -> Change:
    row = json.loads(message)["after"]
    return row["id"], row["n"]


def _answer(answer: Entry, status: int = 200) -> HttpResponse:
    headers = {"content-type": "application/x-amz-json-1.1"}
    return HttpResponse(status=status, body=json.dumps(answer).encode(), headers=headers)


@pytest.fixture
def service(seed: int) -> Iterator[Service]:
    with Service(seed) as made:
        yield made


@pytest.fixture
def system(victim_database: Database, service: Service, tmp_path: Path) -> Iterator[System]:
    login = {
        "region": "us-east-1",
        "endpoint_url": service.url,
        "access_key_id": "an-access-key",
        "secret_access_key": "a-secret",
    }
    retry = {"attempts": 6, "first_s": 0.01, "max_s": 0.2}
    common: dict[str, Any] = {"max_open_s": 3, "retry": retry}
    queue = f"{service.url}/123456789012/plain.fifo"
    pipelines = {
        "plain": {**common, "sink": {"type": "sqs", "queue": queue, **login}},
        "sql": {
            **common,
            "where": "after.n >= 0",
            "sink": {"type": "kinesis", "stream": "sql", **login},
        },
        "lanes": {**common, "lanes": 2, "sink": {"type": "kinesis", "stream": "lanes", **login}},
    }
    made = System(victim_database, tmp_path, pipelines, tables=TABLES)
    yield made
    made.kill()


@pytest.mark.timeout(600)
def test_every_change_is_delivered_or_parked(system: System, service: Service, seed: int) -> None:
    run(system, service, seed, CI_KILLS)


@pytest.mark.soak
def test_every_change_is_delivered_or_parked_for_long(
    system: System, service: Service, seed: int
) -> None:
    run(system, service, seed, soak.rounds(every=25))
