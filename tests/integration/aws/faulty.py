"""`FaultyAws`: passes requests on to a server of AWS, and fails some of them or of their entries.

It knows the services that speak JSON: SQS, Kinesis and EventBridge.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tailrace.testing import HttpReceiver, HttpRequest, HttpResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    Entry = dict[str, Any]
    Judge = Callable[[Entry], Entry | None]

ENTRIES = {
    "SendMessageBatch": "Entries",
    "PutRecords": "Records",
    "PutEvents": "Entries",
}
"""What the entries of a request are called, by operation."""


class FaultyAws(HttpReceiver):
    """`judge` says what is wrong with an entry; None passes it on. `refuse` answers a request."""

    def __init__(self, url: str) -> None:
        super().__init__(self._answered)
        self._url = url
        self.judge: Judge = lambda _: None
        self.refuse: Callable[[str], HttpResponse | None] = lambda _: None
        self.batches: list[list[Entry]] = []
        """The entries of each request to send messages."""

    def _answered(self, request: HttpRequest) -> HttpResponse:
        operation = request.headers.get("x-amz-target", "").rpartition(".")[2]
        refused = self.refuse(operation)
        if refused is not None:
            return refused
        if operation not in ENTRIES:
            return self._passed_on(request)
        call = json.loads(request.body)
        name = ENTRIES[operation]
        entries = call[name]
        self.batches.append(entries)
        failed = {at: fault for at, each in enumerate(entries) if (fault := self.judge(each))}
        call[name] = [each for at, each in enumerate(entries) if at not in failed]
        if not failed:
            return self._passed_on(request)
        answer: Entry = {}
        if call[name]:
            passed = self._passed_on(replace(request, body=json.dumps(call).encode()))
            assert passed.status == 200, passed.body
            answer = json.loads(passed.body)
        return _json(_with_failed(operation, answer, entries, failed))

    def _passed_on(self, request: HttpRequest) -> HttpResponse:
        kept = ("content-type", "x-amz-target", "authorization", "x-amz-date", "x-amzn-query-mode")
        headers = {name: value for name, value in request.headers.items() if name in kept}
        onward = urllib.request.Request(
            f"{self._url}{request.path}", request.body, headers, method=request.method
        )
        try:
            with urllib.request.urlopen(onward) as response:
                return HttpResponse(body=response.read(), headers=_type(response))
        except urllib.error.HTTPError as error:
            with error:
                return HttpResponse(status=error.code, body=error.read(), headers=_type(error))


def _with_failed(
    operation: str, answer: Entry, entries: list[Entry], failed: dict[int, Entry]
) -> Entry:
    """The answer with what is wrong with some entries."""
    if operation == "SendMessageBatch":
        named = [{"Id": entries[at]["Id"], **fault} for at, fault in failed.items()]
        return {**answer, "Failed": named}
    name = ENTRIES[operation]
    passed = iter(answer.get(name, ()))
    results = [failed[at] if at in failed else next(passed) for at in range(len(entries))]
    count = {"PutRecords": "FailedRecordCount", "PutEvents": "FailedEntryCount"}[operation]
    return {count: len(failed), name: results}


def error(code: str, status: int = 400, *, retry_after: str = "") -> HttpResponse:
    """The answer to a request that fails as a whole."""
    headers = {"retry-after": retry_after} if retry_after else {}
    answer = _json({"__type": code, "message": f"{code} it is"})
    return replace(answer, status=status, headers={**answer.headers, **headers})


def _json(answer: Entry) -> HttpResponse:
    return HttpResponse(
        body=json.dumps(answer).encode(), headers={"content-type": "application/x-amz-json-1.1"}
    )


def _type(response: Any) -> dict[str, str]:
    return {"content-type": response.headers.get("content-type", "")}
