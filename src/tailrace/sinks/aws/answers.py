"""What the answer to an accepted request says about each of its messages.

A message is accepted only if the answer says so. One that an answer does not mention is sent again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.sinks.outcome import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.sinks.aws.failures import Service

NO_RESULT = Outcome(
    verdict=Verdict.RETRY, code="NO_RESULT", reason="the answer does not mention the message"
)


def outcomes_by_id(
    service: Service, answer: Mapping[str, Any], *, count: int, destination: str
) -> Mapping[int, Outcome]:
    """From an answer of SQS or SNS, whose entries `Successful` and `Failed` have the row as id."""
    accepted = {each["Id"] for each in answer.get("Successful", ())}
    if len(accepted) == count:
        return {}
    found = {row: NO_RESULT for row in range(count) if str(row) not in accepted}
    for each in answer.get("Failed", ()):
        found[int(each["Id"])] = service.outcome(
            each.get("Code", ""),
            each.get("Message", ""),
            sender_fault=bool(each.get("SenderFault")),
            destination=destination,
        )
    return found


def outcomes_by_row(
    service: Service,
    results: Sequence[Mapping[str, Any]],
    *,
    count: int,
    accepted: str,
    sender_fault: bool,
    destination: str,
) -> Mapping[int, Outcome]:
    """From an answer of Kinesis or EventBridge, which has a result per row, in order.

    `accepted` is a field that only results of accepted messages have.
    """
    if len(results) != count:
        return dict.fromkeys(range(count), NO_RESULT)
    return {
        row: service.outcome(
            each["ErrorCode"],
            each.get("ErrorMessage", ""),
            sender_fault=sender_fault,
            destination=destination,
        )
        if each.get("ErrorCode")
        else NO_RESULT
        for row, each in enumerate(results)
        if not each.get(accepted)
    }
