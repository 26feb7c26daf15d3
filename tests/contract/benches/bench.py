"""What the contract suites need of a destination: sinks, what it holds, and faults on demand."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tailrace.sinks.contract import Lane
from tailrace.sinks.registry import SINKS
from tailrace.sinks.retry import Retry
from tailrace.testing import TcpProxy
from tests.contract.benches.case import Case
from tests.waiting import LONG_S

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tailrace.sinks.contract import Sink
    from tailrace.sinks.sink_type import SinkSettings, SinkType

TOO_LARGE = 11_000_000
"""The size of a payload that no sink accepts with its default settings."""
SMALL_LIMIT = 2000
"""The largest payload, in bytes, while a bench refuses messages by their size."""
Delivered = tuple[bytes, bytes, bytes]
"""Destination, id, payload."""
SOON = Retry(attempts=50, first_s=0.001, max_s=0.02)
ONCE = Retry(attempts=1)


class Bench(ABC):
    """A real destination, and sinks for it. It overrides the faults that it can have."""

    prefix: str
    """What all destinations begin with."""
    pipeline: str = "contract"
    port: int = 0
    """Where its server listens; 0 if sinks do not reach it over one TCP port."""
    once: bool = False
    """Whether it has each message once, whatever is replayed."""
    ordered: bool = True
    """Whether messages of a key are stored in their order. Otherwise later ones that are in the
    request of a refused one are stored, too."""
    fences: bool = False
    """Whether a sink that was replaced fails with SinkFencedError."""
    acceptance: re.Pattern[bytes] = re.compile(b"^POST|^PUT")
    """In what a sink sends: the request after which its messages are stored."""
    visible_at_once: bool = True
    """Whether consumers see messages as soon as the server has accepted them."""
    refused_until_restart: bool = True
    """Whether what is refused depends on settings of the sink, so that only a new one accepts it.
    Otherwise the destination refuses, and accepts while the sink stays open."""
    _limited = False

    def place(self, table: str = "orders") -> bytes:
        """The destination of a table's messages."""
        return f"{self.prefix}.{table}.insert".encode()

    def refused_place(self) -> bytes:
        """The destination of a message that is refused."""
        return self.place()

    @abstractmethod
    def keys(self, port: int, timeout_s: float) -> dict[str, Any]:
        """The settings of a sink that connects to a port."""

    @abstractmethod
    def delivered(self) -> list[Delivered]:
        """What the destination holds, in its order."""

    def headers(self) -> list[dict[str, str]]:
        """The headers of what it holds, with names in lower case, if its messages have any."""
        raise NotImplementedError

    @property
    def kind(self) -> SinkType[Any]:
        """The kind of its sinks."""
        return SINKS.find(self.settings().type)

    def settings(self, *, port: int = 0, timeout_s: float = LONG_S) -> SinkSettings:
        """The settings of its sinks."""
        keys = self.keys(port or self.port, timeout_s)
        if self._limited:
            keys["max_message_bytes"] = SMALL_LIMIT
        settings: SinkSettings = SINKS.find(keys["type"]).settings.model_validate(keys)
        return settings

    def make(
        self,
        *,
        port: int = 0,
        timeout_s: float = LONG_S,
        retry: Retry = SOON,
        folder: Path | None = None,
    ) -> Sink:
        """A new sink, not opened, for the server or for a proxy to it."""
        settings = self.settings(port=port, timeout_s=timeout_s)
        return self.kind.open(settings, self.lane(retry=retry, folder=folder))

    def lane(self, *, retry: Retry, folder: Path | None) -> Lane:
        """The lane of its sinks."""
        return Lane(pipeline=self.pipeline, retry=retry, folder=folder)

    def proxy(self) -> TcpProxy:
        """A proxy between sinks and the server."""
        assert self.port
        return TcpProxy("127.0.0.1", self.port)

    def can(self, case: Case) -> bool:
        """Whether it can have the faults of a case."""
        match case:
            case Case.CUTS | Case.LOST_ANSWER | Case.STALL:
                return bool(self.port)
            case Case.PARTIAL:
                return type(self).failing_in_part is not Bench.failing_in_part
            case Case.ALWAYS:
                return type(self).failing_for_now is not Bench.failing_for_now
            case Case.THROTTLED:
                return type(self).throttling is not Bench.throttling
            case _:
                return True

    def refuse(self) -> None:
        """Refuse messages to `refused_place` whose payload is larger than SMALL_LIMIT."""
        self._limited = True

    def accept(self) -> None:
        """Refuse nothing any more."""
        self._limited = False

    @contextmanager
    def failing_in_part(self, rng: random.Random) -> Iterator[None]:
        """Within the block some messages of a request fail, and may be accepted later."""
        del rng
        raise NotImplementedError
        yield

    def failing_for_now(self) -> AbstractContextManager[None]:
        """Within the block messages to `refused_place` whose payload is larger than SMALL_LIMIT
        fail whenever they are sent, and might be accepted later. Sinks are made within the block,
        and new ones after it."""
        raise NotImplementedError

    def throttling(self, after_s: int) -> AbstractContextManager[Throttle]:
        """Within the block the destination asks to wait for some seconds before each request."""
        del after_s
        raise NotImplementedError


class Throttle:
    """What throttles a destination, until it is lifted."""

    def __init__(self) -> None:
        self.answers = 0
        """How often it asked to wait."""
        self._lifted = False

    def lift(self) -> None:
        """Accept what comes from now on."""
        self._lifted = True

    def applies(self) -> bool:
        """Whether to ask the sender of a request to wait."""
        self.answers += not self._lifted
        return not self._lifted


def lower(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers with names in lower case: not every protocol keeps the case."""
    return {name.lower(): value for name, value in headers}


def number_of(payload: bytes) -> int:
    """The number of a message: it begins its payload, or is its member `n`. -1: it has none."""
    if payload.startswith(b"{"):
        return int(json.loads(payload)["n"])
    digits = re.match(rb"\d+", payload)
    return int(digits[0]) if digits else -1
