"""Stock clients behind one face, so that each scenario runs with all of them."""

from __future__ import annotations

from tests.integration.broker.clients.aiokafka import Aiokafka
from tests.integration.broker.clients.client import Acks, Client, Record, Shown
from tests.integration.broker.clients.java import Java
from tests.integration.broker.clients.kafka_python import KafkaPython
from tests.integration.broker.clients.librdkafka import Librdkafka
from tests.integration.broker.clients.login import Login

__all__ = [
    "CLIENTS",
    "MEMBERS",
    "Acks",
    "Client",
    "Java",
    "Librdkafka",
    "Login",
    "Record",
    "Shown",
    "able",
]

CLIENTS: dict[str, type[Client]] = {
    "librdkafka": Librdkafka,
    "aiokafka": Aiokafka,
    "kafka-python": KafkaPython,
    "java": Java,
}

MEMBERS = ("kcat", *CLIENTS)
"""Those that can be members of a group. Other scenarios of kcat are in `test_kcat`."""

LACKS = {
    "cooperative": {"aiokafka": "its members give up everything before they join again"},
    "delete_group": {"aiokafka": "its administration cannot delete groups"},
}
"""What a client cannot do, and why a scenario leaves it out."""


def able(feature: str, *, among: tuple[str, ...] = tuple(CLIENTS)) -> list[str]:
    """Those that can do it."""
    return [name for name in among if name not in LACKS[feature]]
