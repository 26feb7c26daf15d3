"""A consumer by script, and a connection to the stream that it reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def delivery(sequence: int, number: int = 0, data: bytes = b"") -> Any:
    """A message of JetStream: its sequence in the stream and in its consumer."""
    sequences = SimpleNamespace(stream=sequence, consumer=number or sequence)
    return SimpleNamespace(
        metadata=SimpleNamespace(sequence=sequences, num_pending=0),
        data=data, headers=None, subject="cdc.users.insert", reply=f"ack.{sequence}",
    )  # fmt: skip


class FakeConsumer:
    """Returns batches in order. A batch may be followed by a possible gap."""

    def __init__(self, *batches: list[Any], gap_after: int | None = None) -> None:
        self.name = "consumer"
        self.gap_possible = False
        self.closed = False
        self._batches = [*batches]
        self._gap_after = gap_after
        self._calls = 0

    async def next(self) -> list[Any]:
        batch = self._batches.pop(0)
        self.gap_possible = self.gap_possible or self._calls == self._gap_after
        self._calls += 1
        return batch

    async def exists(self) -> bool:
        return True

    async def open(self) -> None:
        return None

    async def close(self) -> None:
        self.closed = True


class FakeConnection:
    """The state of a stream, and what was published."""

    def __init__(self, *, first_seq: int = 1, last_seq: int = 0, **cluster: Any) -> None:
        self.info: dict[str, Any] = {
            "state": {"first_seq": first_seq, "last_seq": last_seq},
            "created": "2026",
        } | cluster
        self.published: list[tuple[str, bytes]] = []
        self.client = SimpleNamespace(is_connected=False, publish=self._publish)

    async def _publish(self, subject: str, data: bytes) -> None:
        self.published.append((subject, data))

    async def stream_info(self, _stream: str) -> dict[str, Any]:
        return self.info

    async def flush(self) -> None:
        return None
