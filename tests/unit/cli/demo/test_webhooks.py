"""The receiver of webhooks: each change counts once, and one of twenty fails twice."""

from __future__ import annotations

from collections import Counter

import httpx

from tailrace.change import Op
from tailrace.cli.demo.webhooks import FAILING_EVERY, Webhooks
from tests.unit.cli.demo.test_arrival import message


def post(url: str, name: int) -> int:
    headers = {"webhook-id": f"change-{name}"}
    return httpx.post(url, content=message(), headers=headers).status_code


def test_a_message_fails_twice_and_then_arrives() -> None:
    with Webhooks() as webhooks:
        assert [post(webhooks.url, 1) for _ in range(4)] == [503, 503, 200, 200]
        assert [post(webhooks.url, 2 + name) for name in range(FAILING_EVERY)] == [
            *[200] * (FAILING_EVERY - 1),
            503,
        ]
        assert webhooks.counts == Counter({("users", Op.UPDATE): FAILING_EVERY})
        assert webhooks.recovered == 1
        assert webhooks.summary().startswith("20 accepted, 1 of them after failures; the last one")
