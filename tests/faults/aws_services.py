"""SQS and Kinesis as they fail: requests that are accepted in part, throttled, or lost."""

from __future__ import annotations

import base64
import json
import random
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tailrace.testing import HttpReceiver, HttpRequest, HttpResponse
from tests.faults.destination import Destination

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.destination import Change

    Entry = dict[str, Any]


class AwsServices(Destination):
    """Of 100 requests, 2 are lost before they arrive, 2 after, 2 are throttled and 2 fail. 5 % of
    entries fail for now, and those of certain changes for good."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self._rng = random.Random(seed)
        self._accepting = threading.Lock()
        self._accepted: dict[str, list[Change]] = defaultdict(list)
        self._unanswered = 0
        """Changes that were accepted, with an answer that was lost."""
        self._healed = False
        self._receiver = _Receiver(self._answer)

    def sink(self, name: str, *, healed: bool = False) -> dict[str, Any]:
        del healed
        url = f"http://127.0.0.1:{self._receiver.port}"
        login = {
            "region": "us-east-1",
            "endpoint_url": url,
            "access_key_id": "an-access-key",
            "secret_access_key": "a-secret",
        }
        if name == "plain":
            return {"type": "sqs", "queue": f"{url}/123456789012/{name}.fifo", **login}
        return {"type": "kinesis", "stream": name, "batch_rows": 50, **login}

    def accepted(self, name: str) -> list[Change]:
        return list(self._accepted[name])

    def allowed_repeats(self, faults: int, lanes: int) -> int:
        """Requests are in flight when a process dies: 16, of 50 records at most."""
        return self._unanswered + faults * lanes * 16 * 50

    def heal(self) -> None:
        self._healed = True

    def _answer(self, request: HttpRequest) -> HttpResponse:
        operation = request.headers["x-amz-target"].rpartition(".")[2]
        if operation.startswith("List"):
            return _document({})
        call = json.loads(request.body)
        with self._accepting:
            chance = 1.0 if self._healed else self._rng.random()
            if chance < 0.02:
                return HttpResponse(status=0)
            if chance < 0.04:
                return _document({"__type": "RequestThrottled"}, status=400)
            if chance < 0.06:
                return _document({"__type": "InternalFailure"}, status=500)
            sent = {"SendMessageBatch": self._queued, "PutRecords": self._put}[operation]
            before = sum(map(len, self._accepted.values()))
            answer = sent(call)
            if chance < 0.08:
                self._unanswered += sum(map(len, self._accepted.values())) - before
                return HttpResponse(status=0)
        return _document(answer)

    def _queued(self, call: Entry) -> Entry:
        name = call["QueueUrl"].rpartition("/")[2].removesuffix(".fifo")
        results: dict[str, list[Entry]] = {"Successful": [], "Failed": []}
        for entry in call["Entries"]:
            row = json.loads(entry["MessageBody"])["after"]
            refused = self._refuses(row)
            if refused or self._fails():
                failed = {"Id": entry["Id"], "Code": "Whatever", "SenderFault": refused}
                results["Failed"].append(failed)
            else:
                self._accepted[name].append((row["id"], row["n"]))
                results["Successful"].append({"Id": entry["Id"]})
        return results

    def _put(self, call: Entry) -> Entry:
        results = []
        for record in call["Records"]:
            row = json.loads(base64.b64decode(record["Data"]))["after"]
            if self._refuses(row) or self._fails():
                results.append({"ErrorCode": "InternalFailure"})
            else:
                self._accepted[call["StreamName"]].append((row["id"], row["n"]))
                results.append({"SequenceNumber": "1", "ShardId": "shardId-0"})
        failed = sum("ErrorCode" in each for each in results)
        return {"FailedRecordCount": failed, "Records": results}

    def _refuses(self, row: Entry) -> bool:
        return not self._healed and bool(row["note"])

    def _fails(self) -> bool:
        return not self._healed and self._rng.random() < 0.05

    def __enter__(self) -> Destination:
        self._receiver.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._receiver.__exit__()


class _Receiver(HttpReceiver):
    def keep(self, request: HttpRequest) -> None:
        """Nothing: the answers are enough."""


def _document(answer: Entry, status: int = 200) -> HttpResponse:
    headers = {"content-type": "application/x-amz-json-1.1"}
    return HttpResponse(status=status, body=json.dumps(answer).encode(), headers=headers)
