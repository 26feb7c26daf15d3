"""`FaultyAws`: passes requests on to a server of AWS, and fails some of them or of their entries.

SQS, Kinesis and EventBridge speak JSON, SNS sends forms and receives XML.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

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


_MEMBERS = "PublishBatchRequestEntries.member."
_MEMBER = re.compile(re.escape(_MEMBERS) + r"(\d+)\.")


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
        form = dict(parse_qsl(request.body.decode())) if _is_form(request) else {}
        target = request.headers.get("x-amz-target", "").rpartition(".")[2]
        operation = form.get("Action", target)
        refused = self.refuse(operation)
        if refused is not None:
            return _as_xml(refused) if form else refused
        if operation == "PublishBatch":
            return self._published(request, form)
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

    def _published(self, request: HttpRequest, form: dict[str, str]) -> HttpResponse:
        """The answer of SNS. Its entries are numbered from 1."""
        members: defaultdict[int, Entry] = defaultdict(dict)
        for name, value in form.items():
            if (match := _MEMBER.match(name)) is not None:
                members[int(match[1])][name[match.end() :]] = value
        entries = [members[number] for number in sorted(members)]
        self.batches.append(entries)
        faults = {each["Id"]: fault for each in entries if (fault := self.judge(each))}
        kept = {name: value for name, value in form.items() if not _MEMBER.match(name)}
        passed = [each for each in entries if each["Id"] not in faults]
        for number, entry in enumerate(passed, 1):
            kept |= {f"{_MEMBERS}{number}.{name}": value for name, value in entry.items()}
        result = "PublishBatchResult"
        body = f"<PublishBatchResponse><{result}></{result}></PublishBatchResponse>".encode()
        if passed:
            answer = self._passed_on(replace(request, body=urlencode(kept).encode()))
            assert answer.status == 200, answer.body
            body = re.sub(rb"<Failed\s*/>|<Failed>\s*</Failed>", b"", answer.body)
        failed = "".join(
            f"<member>{_elements({'Id': name} | fault)}</member>" for name, fault in faults.items()
        )
        start = f"<{result}>"
        body = body.replace(start.encode(), f"{start}<Failed>{failed}</Failed>".encode(), 1)
        return HttpResponse(body=body, headers={"content-type": "text/xml"})

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


def _is_form(request: HttpRequest) -> bool:
    return request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")


def _as_xml(refused: HttpResponse) -> HttpResponse:
    """The same answer as SNS gives it."""
    found = json.loads(refused.body)
    told = _elements({"Type": "Sender", "Code": found["__type"], "Message": found["message"]})
    body = f"<ErrorResponse><Error>{told}</Error></ErrorResponse>".encode()
    return replace(refused, body=body, headers={**refused.headers, "content-type": "text/xml"})


def _elements(values: Entry) -> str:
    return "".join(
        f"<{name}>{json.dumps(value).strip(chr(34))}</{name}>" for name, value in values.items()
    )


def _json(answer: Entry) -> HttpResponse:
    return HttpResponse(
        body=json.dumps(answer).encode(), headers={"content-type": "application/x-amz-json-1.1"}
    )


def _type(response: Any) -> dict[str, str]:
    return {"content-type": response.headers.get("content-type", "")}
