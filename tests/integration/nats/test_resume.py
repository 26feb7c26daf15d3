"""A resumed attempt reads the stream back: each message is stored once, after any interruption."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import TYPE_CHECKING

import nats
import pytest
import structlog

from tailrace.errors import SinkUnreachableError
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane, Receipt
from tailrace.sinks.nats.sink import JetStream
from tailrace.testing import EmbeddedNats
from tests.integration.nats.streams import (
    altered,
    batch,
    expected,
    forget_ids,
    held,
    ids,
    opened,
    request,
    sink_settings,
    subject,
)
from tests.unit.sinks.rows import message_id, payload, position

if TYPE_CHECKING:
    from tailrace.sinks.nats.settings import NatsSink


def test_resume_skips_messages_of_an_earlier_attempt(settings: NatsSink) -> None:
    """GIVEN an attempt that was cut off, and a window for repeated ids that is long over
    WHEN the same messages come again
    THEN each is there once."""
    settings = altered(settings, duplicate_window_s=0.1)
    with opened(settings) as sink:
        sink.write(batch(settings, range(300)))
        sink.flush()
        sink.write(batch(settings, range(300, 1000)))
        sink.flush()
    forget_ids(settings)
    with opened(settings, position(299)) as sink:
        sink.write(batch(settings, range(300, 700)))
        sink.write(batch(settings, range(700, 1500)))
        assert sink.flush() == Receipt(
            messages=500, bytes=sum(len(payload(n)) for n in range(1000, 1500)), duplicates=700
        )
    assert held(settings) == expected(settings, range(1500))


def test_resume_after_lanes_that_published_concurrently(settings: NatsSink) -> None:
    settings = altered(settings, duplicate_window_s=0.1)
    even, odd = list(range(0, 400, 2)), list(range(1, 400, 2))
    with opened(settings) as one, opened(settings) as two:
        for start in range(0, 200, 20):
            one.write(batch(settings, even[start : start + 20]))
            one.flush()
            if start < 100:
                two.write(batch(settings, odd[start : start + 20]))
                two.flush()
    forget_ids(settings)
    with opened(settings) as one, opened(settings) as two:
        one.write(batch(settings, even))
        two.write(batch(settings, odd))
        assert one.flush().duplicates == 200
        assert two.flush().duplicates == 100
    assert sorted(ids(settings)) == sorted(message_id(n) for n in range(400))


def test_resume_ignores_messages_of_other_programs(settings: NatsSink) -> None:
    settings = altered(settings, duplicate_window_s=0.1)

    async def others() -> None:
        client = await nats.connect(settings.url.get_secret_value())
        js = client.jetstream(timeout=60)
        for number in range(30):
            headers = {"Nats-Msg-Id": f"theirs {number}"} if number % 2 else None
            await js.publish(subject(settings).decode(), b"theirs", headers=headers)
        await client.close()

    with opened(settings) as sink:
        sink.write(batch(settings, range(100)))
        sink.flush()
        asyncio.run(others())
        sink.write(batch(settings, range(100, 200)))
        sink.flush()
        asyncio.run(others())
    for number in (3, 110, 150):
        answer = request(settings, f"STREAM.MSG.DELETE.{settings.stream.name}", {"seq": number})
        assert answer["success"]
    forget_ids(settings)
    with opened(settings, position(99)) as sink:
        sink.write(batch(settings, range(100, 250)))
        receipt = sink.flush()
    # The 20th of the second hundred was deleted by hand, so it is sent again.
    assert (receipt.messages, receipt.duplicates) == (51, 99)
    ours = [name for name in ids(settings) if b"theirs" not in name and name]
    assert len(ours) == len(set(ours)) == 249


def test_resume_after_a_purge(settings: NatsSink) -> None:
    with opened(settings) as sink:
        sink.write(batch(settings, range(100)))
        sink.flush()
    assert request(settings, f"STREAM.PURGE.{settings.stream.name}", {})["success"]
    with opened(settings, position(49)) as sink:
        sink.write(batch(settings, range(100, 150)))
        sink.flush()
    assert held(settings) == expected(settings, range(100, 150))


def test_a_reopened_sink_knows_what_it_stored(settings: NatsSink) -> None:
    settings = altered(settings, duplicate_window_s=0.1)
    with opened(settings) as sink:
        for start in range(0, 500, 100):
            sink.open(position(start - 1) if start else ORIGIN)
            sink.write(batch(settings, range(start, start + 100)))
            assert sink.flush().messages == 100
        forget_ids(settings)
        # A task of the same micro-batch failed elsewhere: the same position, the same rows.
        sink.open(position(399))
        sink.write(batch(settings, range(400, 500)))
        assert sink.flush().duplicates == 100
        # Another process tried the next one and was cut off.
        with opened(settings, position(499)) as other:
            other.write(batch(settings, range(500, 550)))
            other.flush()
        forget_ids(settings)
        sink.open(position(499))
        sink.write(batch(settings, range(500, 600)))
        assert sink.flush().duplicates == 50
    assert held(settings) == expected(settings, range(600))


def test_a_reopened_sink_keeps_what_it_read_back(settings: NatsSink) -> None:
    """An earlier attempt was far ahead; the next ones take smaller steps."""
    settings = altered(settings, duplicate_window_s=0.1)
    with opened(settings) as sink:
        sink.write(batch(settings, range(500)))
        sink.flush()
    forget_ids(settings)
    with opened(settings) as sink:
        for start in range(0, 600, 100):
            sink.open(position(start - 1) if start else ORIGIN)
            sink.write(batch(settings, range(start, start + 100)))
            sink.flush()
    assert held(settings) == expected(settings, range(600))


def test_the_server_refuses_messages_stored_after_the_read_back(settings: NatsSink) -> None:
    """Within the duplicate window a reopened sink need not read back."""
    with opened(settings) as sink, opened(settings) as other:
        other.write(batch(settings, range(50)))
        other.flush()
        with structlog.testing.capture_logs() as logs:
            sink.open(ORIGIN)
            sink.write(batch(settings, range(100)))
            assert sink.flush().duplicates == 50
        assert logs == []
        # Another lane of the same micro-batch, in the same process: the same position.
        sink.open(ORIGIN)
        sink.write(batch(settings, range(100, 150)))
        assert sink.flush().messages == 50
    assert held(settings) == expected(settings, range(150))


def test_a_slow_batch_is_read_back_before_the_window_ends(settings: NatsSink) -> None:
    settings = altered(settings, duplicate_window_s=2.0)
    with opened(settings) as sink:
        with opened(settings) as other:
            other.write(batch(settings, range(50)))
            other.flush()
        sink.open(ORIGIN)
        time.sleep(2.5)
        sink.write(batch(settings, range(100)))
        assert sink.flush().duplicates == 50
    assert held(settings) == expected(settings, range(100))


def test_an_abandoned_batch_is_read_back(settings: NatsSink) -> None:
    with opened(settings) as sink:
        sink.write(batch(settings, range(1000)))
        sink.open(ORIGIN)
        sink.write(batch(settings, range(1000)))
        receipt = sink.flush()
        assert receipt.messages + receipt.duplicates == 1000
    assert held(settings) == expected(settings, range(1000))


def test_a_recreated_stream_is_not_taken_for_the_old_one(settings: NatsSink) -> None:
    with opened(settings) as sink:
        sink.write(batch(settings, range(100)))
        sink.flush()
        assert request(settings, f"STREAM.DELETE.{settings.stream.name}", None)["success"]
        sink.open(position(99))
        sink.write(batch(settings, range(100, 120)))
        sink.flush()
    assert held(settings) == expected(settings, range(100, 120))


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 3))])
def test_a_killed_server_gets_each_message_once_and_in_order(seed: int, atomic: bool) -> None:
    """GIVEN a server that is killed repeatedly while messages are sent
    WHEN each attempt starts after the last durable one, and the duplicate window is over
    THEN the stream holds every message once, in order."""
    rng = random.Random(seed)
    total, step = 24_000, 4000
    with EmbeddedNats() as server:
        stream = {"duplicate_window_s": 0.1, "atomic": atomic}
        mode = "transaction" if atomic else "none"
        settings = sink_settings(server.url, stream=stream, atomic=mode)
        sink = JetStream(settings, Lane(pipeline="test"))
        done, kills = 0, 0
        while done < total:
            killer = threading.Timer(rng.uniform(0.005, 0.06), server.kill)
            try:
                sink.open(position(done - 1) if done else ORIGIN)
                if kills < 5:
                    killer.start()
                for start in range(done, done + step, 500):
                    sink.write(batch(settings, range(start, start + 500), size=2000))
                sink.flush()
                done += step
            except SinkUnreachableError:
                pass
            if killer.is_alive() or killer.finished.is_set():
                killer.join()
                kills += 1
                time.sleep(0.2)
                server.start()
        sink.close()
        found = ids(settings)
    assert kills == 5
    assert found == [message_id(n) for n in range(total)]


def test_pipelines_share_a_stream_with_subjects_of_their_own(settings: NatsSink) -> None:
    """Positions of another server are unrelated: its LSNs are far lower, or far higher."""
    settings = altered(settings, duplicate_window_s=0.1)
    own = {"low": range(900), "high": range(3_000_000, 3_000_900)}
    subjects = {name: f"{settings.stream.subjects[0].removesuffix('>')}{name}" for name in own}

    def write(name: str, first: int, last: int) -> int:
        numbers = own[name]
        sink = JetStream(settings, Lane(pipeline=name), subjects=subjects[name])
        try:
            sink.open(position(numbers[first] - 1) if first else ORIGIN)
            sink.write(batch(settings, numbers[first:last], destination=subjects[name].encode()))
            return sink.flush().duplicates
        finally:
            sink.close()
            time.sleep(0.2)

    assert [write(name, 0, 600) for name in own] == [0, 0]
    assert [write(name, 300, 900) for name in own] == [300, 300]
    assert [write(name, 300, 900) for name in own] == [600, 600]
    assert sorted(ids(settings)) == sorted(message_id(n) for each in own.values() for n in each)
