"""Client libraries with one interface, so that each scenario runs with all of them."""

from __future__ import annotations

from tests.integration.broker.clients.aiokafka import Aiokafka
from tests.integration.broker.clients.client import Acks, Client, GroupDescription, Record
from tests.integration.broker.clients.java import Java
from tests.integration.broker.clients.kafka_python import KafkaPython
from tests.integration.broker.clients.librdkafka import Librdkafka
from tests.integration.broker.clients.login import Login

__all__ = [
    "CLIENTS",
    "MEMBERS",
    "Acks",
    "Client",
    "GroupDescription",
    "Java",
    "Librdkafka",
    "Login",
    "Record",
    "supporting",
]

CLIENTS: dict[str, type[Client]] = {
    "librdkafka": Librdkafka,
    "aiokafka": Aiokafka,
    "kafka-python": KafkaPython,
    "java": Java,
}

MEMBERS = ("kcat", *CLIENTS)
"""The clients that can be group members. Other scenarios of kcat are in `test_kcat`."""

UNSUPPORTED = {
    "cooperative": {"aiokafka": "its members revoke all partitions before they join again"},
    "delete_group": {"aiokafka": "its admin client cannot delete groups"},
}
"""Features that a client does not have, with the reason."""


def supporting(feature: str, *, among: tuple[str, ...] = tuple(CLIENTS)) -> list[str]:
    """The clients that have a feature."""
    return [name for name in among if name not in UNSUPPORTED[feature]]
