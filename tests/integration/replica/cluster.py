"""A leader and its followers in one process: a log that a test appends to, real sockets."""

from __future__ import annotations

import random
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from tailrace.config import load
from tailrace.log.format import mark as marks
from tailrace.log.format.segment import list_segments
from tailrace.log.store import LocalStore
from tailrace.log.verify import verify
from tailrace.replica.follower import Follower
from tailrace.replica.leader import Leader
from tests.fix_log import TestLog, Workload, all_changes
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.change import Change
    from tailrace.config import Config

QUICK: dict[str, Any] = {
    "reconnect_s": 0.1,
    "state_every_s": 0.05,
    "heartbeat_s": 0.2,
    "timeout_s": 3.0,
    "handshake_s": 3.0,
}


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Runs:
    """Something with `run` in a thread; its error is kept."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.stop = threading.Event()

    def start(self, run: Any, *arguments: Any) -> None:
        self._thread = threading.Thread(target=self._run, args=(run, *arguments), daemon=True)
        self._thread.start()

    def _run(self, run: Any, *arguments: Any) -> None:
        try:
            run(*arguments)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self.stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


class Copy(Runs):
    """A follower and its folder."""

    def __init__(
        self, folder: Path, port: int = 0, *, pipelines: tuple[str, ...] = (), **settings: Any
    ) -> None:
        super().__init__()
        self.port = port or free_port()
        self.store = LocalStore(folder, create=True)
        replication = load(None, {"replication": QUICK | settings}).replication
        self.data = folder / "data"
        self.follower = Follower(
            self.store, replication, data=self.data, pipelines=pipelines, stopping=self.stop.is_set
        )
        self.start(self.follower.run, ("127.0.0.1", self.port))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def state(self) -> str:
        return self.follower.counts.figures.state

    def changes(self) -> list[Change]:
        """What a reader of the copy finds."""
        return all_changes(self.store)


class Leading(Runs):
    """The sender of a log."""

    def __init__(self, store: LocalStore, *followers: str, **settings: Any) -> None:
        super().__init__()
        self.config = config_of(store, *followers, **settings)
        self.leader = Leader(self.config, store, stopping=self.stop.is_set)
        self.start(self.leader.run)


def config_of(store: LocalStore, *followers: str, **settings: Any) -> Config:
    """The settings of a leader."""
    values = QUICK | {"followers": list(followers)} | settings
    loaded = load(None, {"replication": values, "log": {"path": store.folder}})
    return loaded.model_copy(update={"data": store.folder / "data"})


class Source:
    """A log on disk that a test appends random transactions to."""

    def __init__(
        self, folder: Path, *, segment_bytes: int = 4000, seed: int = 1, log_id: str = "log-1"
    ) -> None:
        self.store = LocalStore(folder, create=True)
        self.log = TestLog(
            self.store,  # type: ignore[arg-type]
            segment_bytes=segment_bytes,
            log_id=log_id,
        )
        self.load = Workload(random.Random(seed))

    def append(self, entries: int = 20) -> None:
        for _ in range(entries):
            self.log.append(*(self.load.unit() for _ in range(2)))

    def mark(self) -> marks.Mark:
        found = marks.peek(self.store)
        assert found is not None
        return found

    def close(self) -> None:
        self.log.close()


def equal(source: Source, copy: Copy) -> bool:
    """Whether a copy has arrived at the source's end."""
    held = marks.peek(copy.store)
    return held == source.mark()


def arrived(source: Source, *copies: Copy) -> None:
    """Wait until copies are byte for byte what the source is, and sound."""
    for copy in copies:
        wait_for(partial(equal, source, copy), str(copy.store))
        names = list_segments(copy.store)
        assert names == list_segments(source.store)
        end = source.mark()
        for name in names:
            size = end.offset if name.sequence == end.sequence else source.store.size(name.file)
            expected = source.store.read(name.file, 0, size)
            assert copy.store.read(name.file, 0, size + 1) == expected, name
        assert verify(copy.store).ok
        assert copy.changes() == all_changes(source.store)
