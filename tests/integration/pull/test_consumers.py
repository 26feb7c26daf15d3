"""Consumers over HTTP, with the sink that fills their store."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml

import tailrace.client
from tailrace.errors import SinkRefusedError
from tests import http
from tests.command import call
from tests.integration.pull.serving import CONSUMER, NAME, TOKEN, Filling, config_of, serving
from tests.unit.sinks.pull.stores import Change

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.config import Config


WAIT_MS = 240_000


def json_change(key: str | None, number: int) -> Change:
    return Change(key, payload=b'{"n": %d}' % number)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return config_of(tmp_path / "data")


@pytest.fixture
def filling(config: Config) -> Iterator[Filling]:
    made = Filling(config)
    yield made
    made.close()


@pytest.fixture
def url(config: Config) -> Iterator[str]:
    with serving(config) as made:
        yield made


def post(
    url: str, action: str, body: dict[str, Any], *, token: str = CONSUMER, name: str = NAME
) -> httpx.Response:
    return http.post(
        f"{url}/v1/pull/{name}/{action}",
        content=json.dumps(body),
        headers={"authorization": f"Bearer {token}"},
    )


def receive(url: str, size: int = 10, **more: Any) -> list[dict[str, Any]]:
    answer = post(url, "receive", {"batch_size": size, **more})
    assert answer.status_code == 200, answer.text
    messages: list[dict[str, Any]] = answer.json()["messages"]
    return messages


def numbers(messages: list[dict[str, Any]]) -> list[int]:
    return [each["data"]["n"] for each in messages]


def test_a_message_is_received_and_acknowledged(filling: Filling, url: str) -> None:
    filling.add(json_change("a", 1))
    (message,) = receive(url)
    assert message["data"] == {"n": 1}
    assert (message["id"], message["key"], message["destination"]) == ("1", "a", "t1")
    assert (message["deliveries"], message["position"]) == (1, "0/1.0")
    assert receive(url) == []
    answer = post(url, "ack", {"ack_ids": [message["ack_id"], "999-1"]})
    assert answer.json() == {"acknowledged": 1, "expired": ["999-1"]}
    again = post(url, "ack", {"ack_ids": [message["ack_id"]]})
    assert again.json() == {"acknowledged": 0, "expired": [message["ack_id"]]}
    assert receive(url) == []


def test_a_key_waits_while_it_is_out(filling: Filling, url: str) -> None:
    filling.add(json_change("a", 1), json_change("a", 2), json_change("b", 3))
    (first,) = receive(url, 1)
    assert numbers([first]) == [1]
    assert numbers(receive(url)) == [3]
    post(url, "ack", {"ack_ids": [first["ack_id"]]})
    assert numbers(receive(url)) == [2]


def test_a_rejected_message_is_received_again(filling: Filling, url: str) -> None:
    filling.add(json_change("a", 1))
    (message,) = receive(url)
    rejected = post(url, "nack", {"ack_ids": [message["ack_id"]], "delay_ms": 50})
    assert rejected.json() == {"rejected": 1, "expired": []}
    (again,) = receive(url, wait_ms=WAIT_MS)
    assert (again["id"], again["deliveries"]) == (message["id"], 2)
    assert again["ack_id"] != message["ack_id"]
    late = post(url, "ack", {"ack_ids": [message["ack_id"]]})
    assert late.json()["acknowledged"] == 0
    unseen = post(url, "nack", {"ack_ids": [again["ack_id"]], "counts": False})
    assert unseen.json() == {"rejected": 1, "expired": []}
    assert receive(url)[0]["deliveries"] == 2


def test_a_delivery_ends_and_may_be_extended(filling: Filling, url: str) -> None:
    filling.add(json_change("a", 1), json_change("b", 2))
    short, long = receive(url, visibility_ms=200)
    extended = post(url, "extend", {"ack_ids": [long["ack_id"]], "visibility_ms": 3_600_000})
    assert extended.json() == {"extended": 1, "expired": []}
    (again,) = receive(url, wait_ms=WAIT_MS)
    assert again["id"] == short["id"]
    assert post(url, "ack", {"ack_ids": [long["ack_id"]]}).json()["acknowledged"] == 1


def test_a_waiting_consumer_receives_what_comes(filling: Filling, url: str) -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(numbers(receive(url, wait_ms=WAIT_MS))))
    thread.start()
    filling.add(json_change("a", 1))
    thread.join()
    assert found == [1]


def test_a_consumer_that_disconnects_leaves_messages_to_others(
    config: Config, filling: Filling, url: str
) -> None:
    headers = {"authorization": f"Bearer {CONSUMER}"}
    body = json.dumps({"wait_ms": 300_000})
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/pull/{NAME}/receive", content=body, headers=headers, timeout=0.3)
    filling.add(json_change("a", 1))
    # The server may still find out that the first one has gone.
    assert numbers(receive(url, wait_ms=WAIT_MS)) == [1]


def test_waiting_ends_without_messages(filling: Filling, url: str) -> None:
    assert receive(url, wait_ms=50) == []


def test_tokens(filling: Filling, url: str) -> None:
    filling.add(json_change("a", 1))
    body: dict[str, Any] = {"batch_size": 1}
    assert post(url, "receive", body, token="wrong-0123456789ab").status_code == 401
    assert post(url, "receive", body, token=CONSUMER, name="other").status_code == 401
    assert post(url, "receive", body, token=TOKEN, name="other").status_code == 404
    assert post(url, "receive", body, token=TOKEN, name="missing").status_code == 404
    assert post(url, "drop", {"all": True}, token=CONSUMER).status_code == 401
    exhausted = f"{url}/v1/pull/{NAME}/exhausted"
    assert http.get(exhausted).status_code == 401
    assert post(url, "receive", body, token=TOKEN).status_code == 200


@pytest.mark.parametrize(
    ("action", "body", "message"),
    [
        ("receive", {"batch_size": 0}, "batch_size"),
        ("receive", {"batch_size": 1001}, "batch_size"),
        ("receive", {"wait_ms": 300_001}, "wait_ms"),
        ("receive", {"unknown": 1}, "unknown"),
        ("ack", {"ack_ids": ["nonsense"]}, "must be an ack_id"),
        ("ack", {}, "ack_ids"),
        ("nack", {"ack_ids": [], "delay_ms": -1}, "delay_ms"),
        ("nack", {"ack_ids": [], "delay_ms": 1, "counts": False}, "delay_ms"),
        ("extend", {"ack_ids": []}, "visibility_ms"),
        ("retry", {"all": True, "numbers": [1]}, "set numbers, or else all"),
    ],
)
def test_invalid_requests_are_refused(
    url: str, action: str, body: dict[str, Any], message: str
) -> None:
    answer = post(url, action, body, token=TOKEN)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_exhausted_messages_wait_for_a_decision(tmp_path: Path) -> None:
    config = config_of(tmp_path / "data", max_deliveries=1)
    filling = Filling(config)
    filling.add(json_change("a", 1), json_change("b", 2), json_change("a", 3))
    with serving(config) as url:
        bad, good = receive(url, 2)
        post(url, "ack", {"ack_ids": [good["ack_id"]]})
        post(url, "nack", {"ack_ids": [bad["ack_id"]]})
        assert receive(url) == []
        headers = {"authorization": f"Bearer {TOKEN}"}
        listed = http.get(f"{url}/v1/pull/{NAME}/exhausted", headers=headers).json()["messages"]
        assert [(each["id"], each["payload"]) for each in listed] == [("1", '{"n": 1}')]
        status = http.get(f"{url}/status").json()["pipelines"][NAME]
        assert (status["pull_pending"], status["pull_exhausted"]) == (2, 1)
        chosen = {"numbers": [listed[0]["number"]]}
        assert post(url, "retry", chosen, token=TOKEN).json() == {"matched": 1}
        (again, _) = receive(url)
        post(url, "nack", {"ack_ids": [again["ack_id"]]})
        assert post(url, "drop", {"all": True}, token=TOKEN).json() == {"matched": 1}
        assert numbers(receive(url)) == [3]
    filling.close()


def test_figures(filling: Filling, url: str) -> None:
    filling.add(json_change("a", 1), json_change("b", 2), json_change("c", 3))
    (message, _) = receive(url, 2)
    post(url, "ack", {"ack_ids": [message["ack_id"]]})
    status = http.get(f"{url}/status").json()["pipelines"][NAME]
    shown = {
        name: status[f"pull_{name}"] for name in ("pending", "out", "delivered", "redelivered")
    }
    assert shown == {"pending": 2, "out": 1, "delivered": 2, "redelivered": 0}
    assert status["pull_oldest_s"] >= 0
    metrics = http.get(f"{url}/metrics").text
    assert f'tailrace_pull_pending{{pipeline="{NAME}"}} 2.0' in metrics
    assert f'tailrace_pull_acknowledged_total{{pipeline="{NAME}"}} 1.0' in metrics


def test_a_restart_of_the_server_keeps_what_is_out(config: Config, filling: Filling) -> None:
    filling.add(json_change("a", 1), json_change("a", 2), json_change("b", 3))
    with serving(config) as url:
        (out,) = receive(url, 1)
    with serving(config) as url:
        assert numbers(receive(url)) == [3]
        assert post(url, "ack", {"ack_ids": [out["ack_id"]]}).json()["acknowledged"] == 1
        assert numbers(receive(url)) == [2]


def test_bytes_that_are_not_json(tmp_path: Path) -> None:
    config = config_of(tmp_path / "data")
    pipeline = config.pipelines[NAME].model_copy(update={"encoding": "msgpack"})
    config = config.model_copy(update={"pipelines": {NAME: pipeline}})
    filling = Filling(config)
    filling.add(Change("\x00", payload=b"\xff\x00"))

    async def read(url: str) -> list[Any]:
        async with tailrace.client.pull(url, NAME, token=CONSUMER) as consumer:
            return [(each.key, each.data) for each in await consumer.receive()]

    with serving(config) as url:
        assert asyncio.run(read(url)) == [(b"\x00", b"\xff\x00")]
    filling.close()


def test_text_that_is_not_json_spoils_no_answer(filling: Filling, url: str) -> None:
    """GIVEN payloads that an expression has made THEN those that are not JSON come as Base64."""
    payloads = [b'{"n": 12345678901234567890.10}', b"hello", b"", b'{"n": ', b"\xff", b"null"]
    filling.add(*(Change(f"{at}", payload=each) for at, each in enumerate(payloads)))
    messages = receive(url)
    assert [each["data"] for each in messages if "data" in each] == [json.loads(payloads[0]), None]
    encoded = [each["data_base64"] for each in messages if "data_base64" in each]
    assert [base64.b64decode(each) for each in encoded] == payloads[1:5]
    post(url, "nack", {"ack_ids": [each["ack_id"] for each in messages]})

    async def read() -> list[Any]:
        async with tailrace.client.pull(url, NAME, token=CONSUMER) as consumer:
            return [each.data for each in await consumer.receive(6)]

    assert asyncio.run(read()) == [json.loads(payloads[0]), *payloads[1:5], None]


def test_the_client(filling: Filling, url: str) -> None:
    filling.add(*(json_change(f"{number}", number) for number in range(2500)))

    async def consume() -> list[int]:
        found = []
        async with tailrace.client.pull(url, NAME, token=CONSUMER, batch_size=1000) as consumer:
            (first,) = await consumer.receive(1)
            assert await consumer.nack(first) == 1
            assert await consumer.ack(first) == 0
            batch = []
            async for message in consumer:
                batch.append(message)
                if len(batch) == 2500:
                    break
            assert await consumer.extend(batch, visibility_s=60) == 2500
            assert await consumer.ack(batch) == 2500
            found = [each.data["n"] for each in batch]
            assert await consumer.receive(wait_s=0) == []
        return found

    assert asyncio.run(consume()) == list(range(2500))


def test_a_loop_that_is_left_gives_messages_back(filling: Filling, url: str) -> None:
    """GIVEN a consumer that leaves its loop after a message, again and again THEN the others are
    there for the next one at once, as if they had never been delivered."""
    filling.add(*(json_change(f"{number}", number) for number in range(12)))

    async def consume_one() -> int:
        async with tailrace.client.pull(url, NAME, token=CONSUMER) as consumer:
            async for message in consumer:
                assert message.deliveries == 1
                assert await consumer.ack(message) == 1
                return int(message.data["n"])
        raise AssertionError

    assert [asyncio.run(consume_one()) for _ in range(12)] == list(range(12))


def test_the_client_reports_refusals(url: str) -> None:
    async def ask() -> None:
        async with tailrace.client.pull(url, NAME, token="wrong") as consumer:
            await consumer.receive(wait_s=0)

    with pytest.raises(SinkRefusedError, match="answers 401"):
        asyncio.run(ask())


def test_many_consumers_share_the_messages(tmp_path: Path) -> None:
    """GIVEN 30 consumers that wait WHEN messages of 10 keys come THEN each is received once, and
    those of a key in order."""
    total = 100
    config = config_of(tmp_path / "data", visibility_s=3600)
    filling = Filling(config)

    async def consume(url: str) -> list[tuple[bytes | None, int]]:
        found: list[tuple[bytes | None, int]] = []
        async with tailrace.client.pull(url, NAME, token=CONSUMER, connections=30) as consumer:

            async def work() -> None:
                while len(found) < total:
                    for message in await consumer.receive(3, wait_s=1):
                        found.append((message.key, message.data["n"]))
                        await consumer.ack(message)

            await asyncio.gather(*(work() for _ in range(30)), fill())
        return found

    async def fill() -> None:
        for start in range(0, total, 20):
            changes = [json_change(f"{n % 10}", n) for n in range(start, start + 20)]
            await asyncio.to_thread(filling.add, *changes)

    with serving(config) as url:
        found = asyncio.run(consume(url))
    filling.close()
    assert sorted(n for _, n in found) == list(range(total))
    for key in {key for key, _ in found}:
        order = [n for each, n in found if each == key]
        assert order == sorted(order)


def test_commands_decide_about_exhausted_messages(tmp_path: Path) -> None:
    config = config_of(tmp_path / "data", max_deliveries=1)
    path = tmp_path / "tailrace.yml"
    sink = {"type": "pull", "max_deliveries": 1}
    pipelines = {NAME: {"encoding": "json", "sink": sink}, "other": {"sink": {"type": "nats"}}}
    path.write_text(yaml.safe_dump({"data": str(tmp_path / "data"), "pipelines": pipelines}))
    filling = Filling(config)
    filling.add(json_change("a", 1), json_change("b", 2))

    def command(action: str, *more: str, name: str = NAME) -> subprocess.CompletedProcess[str]:
        return call("pull", action, name, *more, "--config", path)

    with serving(config) as url:
        post(url, "nack", {"ack_ids": [each["ack_id"] for each in receive(url)]})
        listed = [json.loads(line) for line in command("ls").stdout.splitlines()]
        assert [each["payload"] for each in listed] == ['{"n": 1}', '{"n": 2}']
        assert command("retry", "--number", "1").stdout == "1 messages\n"
        assert numbers(receive(url, wait_ms=WAIT_MS)) == [1]
        assert command("drop", "--all", "--yes").stdout == "1 messages\n"
        assert command("ls").stdout == ""
        assert "say which messages" in command("retry").stderr
        assert "no pipeline 'other' with a sink pull" in command("ls", name="other").stderr
    filling.close()
