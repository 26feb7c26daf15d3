"""The interface that scenarios use, for every client library."""

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
    """A record that is produced or consumed."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp: int = 1_700_000_000_000
    partition: int = 0
    offset: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, as an admin client describes it."""

    state: str
    members: tuple[str, ...] = ()
    """The client ids of the members."""


class Client(ABC):
    """A client library. Errors are raised as the library raises them."""

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
        """Produce records. Returns their offsets; -1 where the client does not report them."""

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
        """Consume `count` records from the beginning, from an offset of partition 0, or from the
        group's position; a group commits them.
        """

    @abstractmethod
    def commit(self, group: str, topic: str, offset: int, metadata: str = "") -> None:
        """Commit an offset of partition 0, without being a member."""

    @abstractmethod
    def committed(self, group: str, topic: str) -> tuple[int, str] | None:
        """Committed offset and metadata of partition 0."""

    @abstractmethod
    def bounds(self, topic: str) -> tuple[int, int]:
        """The first and the next offset of partition 0."""

    @abstractmethod
    def at_times(self, topic: str, times: list[int]) -> list[int | None]:
        """The first offsets of partition 0 at or after these timestamps."""

    @abstractmethod
    def create(self, topic: str, partitions: int, settings: dict[str, str]) -> None: ...

    @abstractmethod
    def partitions(self, topic: str) -> int:
        """The number of partitions."""

    @abstractmethod
    def grow(self, topic: str, partitions: int) -> None: ...

    @abstractmethod
    def cut(self, topic: str, offset: int) -> int:
        """Delete records before an offset of partition 0. Returns the first offset left."""

    @abstractmethod
    def delete(self, topic: str) -> None: ...

    @abstractmethod
    def settings(self, topic: str) -> dict[str, str]:
        """The settings of a topic, at least those that are not defaults."""

    @abstractmethod
    def alter(self, topic: str, name: str, value: str) -> None: ...

    @abstractmethod
    def groups(self) -> set[str]: ...

    @abstractmethod
    def group(self, name: str) -> GroupDescription: ...

    def delete_group(self, name: str) -> None:
        """Not supported by all libraries."""
        raise NotImplementedError

    @abstractmethod
    def refusal(self, error: BaseException) -> str:
        """Kafka's name of an error code of a broker, or the name of the library's own error."""


def kafka_name(code: int) -> str:
    """Kafka's spelling: TOPIC_ALREADY_EXISTS."""
    return ErrorCode(code).name.upper()
