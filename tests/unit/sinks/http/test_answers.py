"""What answers to arrays mean."""

from __future__ import annotations

from tailrace.sinks.http.answers import outcomes_of
from tailrace.sinks.outcome import Verdict

BUSY = b'{"results": [{"status": 503}]}'


def test_an_array_of_one_message_has_a_result_too() -> None:
    """What is left of an array is sent again, which may be a single message."""
    [outcome] = outcomes_of(207, count=1, array=True, body=BUSY).values()
    assert (outcome.verdict, outcome.code) == (Verdict.RETRY, "HTTP_503")


def test_the_body_of_an_answer_to_a_message_means_nothing() -> None:
    assert outcomes_of(200, count=1, array=False, body=BUSY) == {}
