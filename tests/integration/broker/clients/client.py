"""What a scenario asks of a client library, whichever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal

from kio.schema.errors import ErrorCode

from tests.integration.broker.clients.login import Login

Acks = Literal[0, 1, "all"]
Reset = Literal["earliest", "latest", "none"]
Headers = tuple[tuple[str, bytes | None], ...]
LONG_S = 60


@dataclass(frozen=True, slots=True)
class Record:
    """What goes in, or comes out."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp: int = 1_700_000_000_000
    partition: int = 0
    offset: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class Shown:
    """A group, as an administrator sees it."""

    state: str
    members: tuple[str, ...] = ()
    """The ids that their clients have given themselves."""


class Client(ABC):
    """A client library. Whatever goes wrong is raised as the library raises it."""

    def __init__(self, bootstrap: str, login: Login | None = None) -> None:
        self.bootstrap = bootstrap
        self.login = login or Login()

    @abstractmethod
    def produce(
        self,
        topic: str,
        records: list[Record],
        *,
        acks: Acks = "all",
        compression: str = "none",
        patience_s: float = LONG_S,
    ) -> list[int]:
        """The offsets they got; -1 where the client is not told."""

    @abstractmethod
    def consume(
        self,
        topic: str,
        count: int,
        *,
        group: str | None = None,
        start: int | None = None,
        reset: Reset = "earliest",
    ) -> list[Record]:
        """So many from the beginning, from an offset of partition 0, or from where the group
        stands; a group commits them.
        """

    @abstractmethod
    def commit(self, group: str, topic: str, offset: int, metadata: str = "") -> None:
        """For partition 0, by nobody's member."""

    @abstractmethod
    def committed(self, group: str, topic: str) -> tuple[int, str] | None:
        """Offset and metadata of partition 0."""

    @abstractmethod
    def bounds(self, topic: str) -> tuple[int, int]:
        """The first and the next offset of partition 0."""

    @abstractmethod
    def at_times(self, topic: str, times: list[int]) -> list[int | None]:
        """The first offsets of partition 0 at or after these."""

    @abstractmethod
    def create(self, topic: str, partitions: int, settings: dict[str, str]) -> None: ...

    @abstractmethod
    def partitions(self, topic: str) -> int:
        """How many it has."""

    @abstractmethod
    def grow(self, topic: str, partitions: int) -> None: ...

    @abstractmethod
    def cut(self, topic: str, offset: int) -> int:
        """Delete what is before an offset of partition 0; the first that is left."""

    @abstractmethod
    def delete(self, topic: str) -> None: ...

    @abstractmethod
    def settings(self, topic: str) -> dict[str, str]:
        """Those of a topic that are not as they are by default, at least."""

    @abstractmethod
    def alter(self, topic: str, name: str, value: str) -> None: ...

    @abstractmethod
    def groups(self) -> set[str]: ...

    @abstractmethod
    def group(self, name: str) -> Shown: ...

    def delete_group(self, name: str) -> None:
        """Not all have it."""
        raise NotImplementedError

    @abstractmethod
    def refusal(self, error: BaseException) -> str:
        """Kafka's name for what a broker has answered, or the library's own for an error of its."""


def kafka_name(code: int) -> str:
    """How Kafka spells it: TOPIC_ALREADY_EXISTS."""
    return ErrorCode(code).name.upper()
