"""Topics of Kafka that refuse large messages: connections break, and the broker is killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from typing_extensions import override

from tailrace.testing import EmbeddedKafka
from tests import topics
from tests.contract.benches.brokers import KafkaProxy
from tests.faults.destination import changes
from tests.faults.proxied import Proxied
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.testing.proxy import TcpProxy
    from tests.faults.destination import Change

_LIMIT, _HEALED = 3000, 1_000_000
_BATCH_BYTES = 1000
"""What the producer sends together: less than the topics take."""


class KafkaTopics(Proxied[EmbeddedKafka]):
    """A topic of three partitions per pipeline. Messages are too large for it until it is
    healed."""

    repeats_per_fault = 500_000
    """A micro-batch, as `batch_rows` of a pipeline allows."""
    transactional = False

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed, EmbeddedKafka(data=folder / "kafka"))
        self._names: list[str] = []

    @override
    def proxy(self) -> TcpProxy:
        return KafkaProxy(self.server.port)

    def sink(self, name: str, *, healed: bool = False) -> dict[str, Any]:
        if not healed:
            self._names.append(name)
            new = NewTopic(name, 3, 1, config={"max.message.bytes": str(_LIMIT)})
            admin = AdminClient({"bootstrap.servers": self.server.bootstrap, "log_level": 0})
            admin.create_topics([new])[name].result(LONG_S)
        return {
            "type": "kafka",
            "bootstrap": f"127.0.0.1:{self.port}",
            "topic": name,
            "transactional": self.transactional,
            "compression": "none",
            "timeout_s": 30,
            "settings": {"batch.size": str(_BATCH_BYTES)},
        }

    def accepted(self, name: str) -> list[Change]:
        # A pipeline that waits for changes may have a transaction open.
        found = topics.messages(self.server.bootstrap, name, is_open=self.transactional)
        return changes(value for each in found if (value := each.value()) is not None)

    def heal(self) -> None:
        for name in self._names:
            topics.alter(self.server.bootstrap, name, {"max.message.bytes": str(_HEALED)})


class KafkaTransactions(KafkaTopics):
    """The same in transactions: each change is there once."""

    repeats_per_fault = 0
    transactional = True
