"""The sink `file` in object stores: a real server of the S3 API, and fsspec's memory."""

from __future__ import annotations

import contextlib
import io
import uuid
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow.parquet as pq
import pytest
import s3fs

from tailrace.errors import SinkFencedError, SinkRefusedError, SinkUnreachableError
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.file.settings import FileSink
from tailrace.sinks.file.sink import Files
from tailrace.sinks.file.sink_type import SINK, store_of
from tests.fix_s3 import S3Server
from tests.unit.sinks.file.stores import DeadError, MortalStore
from tests.unit.sinks.rows import position, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

FAST = {"config_kwargs": {"retries": {"max_attempts": 0}, "connect_timeout": 2}}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library does not try again, which takes seconds."""
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)


class Target:
    """A folder of a store, and sinks for it."""

    def __init__(self, url: str, **options: Any) -> None:
        self.settings = FileSink.model_validate(
            {"type": "file", "url": url, "options": options, "roll_s": 0}
        )

    def sink(self, dies: Callable[[int], None] = lambda _: None) -> Files:
        lane = Lane(pipeline="p", history="log")
        return Files(self.settings, lane, lambda: MortalStore(store_of(self.settings), dies))

    def names(self) -> list[str]:
        files, root = fsspec.url_to_fs(
            self.settings.url, **self.settings.plain_options, use_listings_cache=False
        )
        return [str(name) for name in files.find(root)]

    def numbers(self) -> list[tuple[int, int]]:
        """The positions in all files with final names."""
        files, _ = fsspec.url_to_fs(self.settings.url, **self.settings.plain_options)
        found: list[tuple[int, int]] = []
        for name in self.names():
            if name.endswith(".parquet"):
                table = pq.read_table(io.BytesIO(files.cat_file(name)))
                columns = table["lsn"].to_pylist(), table["ordinal"].to_pylist()
                found += zip(*columns, strict=True)
        return found


def deliver(sink: Files, numbers: Iterable[int], *, cut: int) -> None:
    sink.open(ORIGIN)
    chosen = list(numbers)
    for start in range(0, len(chosen), cut):
        for number in chosen[start : start + cut]:
            sink.write(rows([number], destination=b"ab"[number % 2 : number % 2 + 1]))
        sink.flush(end=start + cut >= len(chosen))


def expected(numbers: Iterable[int]) -> list[tuple[int, int]]:
    return [(int(position(number).lsn), position(number).ordinal) for number in numbers]


def steps(new_target: Callable[[], Target], numbers: range) -> Iterable[int]:
    """All steps, or some if they take long: each sink of S3 loads its library's models."""
    return numbers if new_target().settings.url.startswith("memory:") else (8, 10, 12)


@pytest.fixture(params=["s3", "memory"])
def new_target(request: pytest.FixtureRequest) -> Callable[[], Target]:
    if request.param == "memory":
        return lambda: Target(f"memory://{uuid.uuid4().hex}")
    server: S3Server = request.getfixturevalue("s3_server")
    return lambda: Target(f"s3://{server.bucket}/{uuid.uuid4().hex}", **server.options)


def test_a_crash_at_every_step(new_target: Callable[[], Target]) -> None:
    """GIVEN a sink that dies at a step WHEN its batch is replayed with other cuts THEN every
    message is in one file, and what was in a file before is still in it."""
    for step in steps(new_target, range(1, 30)):
        target = new_target()

        def dies(operation: int, at: int = step) -> None:
            if operation == at:
                raise DeadError

        survived = False
        with contextlib.closing(target.sink(dies)) as first, contextlib.suppress(DeadError):
            deliver(first, range(4), cut=3)
            survived = True
        before = {name for name in target.names() if name.endswith(".parquet")}
        second = target.sink()
        deliver(second, range(6), cut=2)
        second.close()
        assert sorted(target.numbers()) == expected(range(6))
        assert before <= set(target.names())
        assert [name for name in target.names() if name.endswith(".tmp")] == []
        assert len([name for name in target.names() if name.endswith(".commit")]) == 1
        if survived:
            return


@pytest.mark.long
def test_a_worker_that_hangs_is_fenced(new_target: Callable[[], Target]) -> None:
    for step in steps(new_target, range(1, 12)):
        target = new_target()

        def successor(operation: int, at: int = step, target: Target = target) -> None:
            if operation == at:
                second = target.sink()
                deliver(second, range(6), cut=4)
                second.close()

        first = target.sink(successor)
        with contextlib.suppress(SinkFencedError):
            deliver(first, range(5), cut=5)
        first.close()
        third = target.sink()
        deliver(third, range(7), cut=7)
        third.close()
        assert sorted(target.numbers()) == expected(range(7))


def test_a_store_without_conditional_writes_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(f"memory://{uuid.uuid4().hex}")
    store = store_of(target.settings)
    monkeypatch.setattr(store, "_exclusive", False)
    store.create("a.commit", b"1")
    with pytest.raises(FileExistsError):
        store.create("a.commit", b"2")
    assert store.read("a.commit") == b"1"


def test_a_server_that_is_killed_and_restarted() -> None:
    """GIVEN a server that dies while a sink writes THEN the sink is unreachable, and can be used
    again once the server is back."""
    with S3Server() as server:
        server.create_bucket()
        target = Target(f"s3://{server.bucket}/x", **server.options, **FAST)
        sink = target.sink()
        deliver(sink, range(4), cut=4)
        sink.open(position(3))
        sink.write(rows(range(4, 8), destination=b"a"))
        server.kill()
        with pytest.raises(SinkUnreachableError, match="EndpointConnectionError"):
            sink.flush()
        server.start()
        # This server forgets everything.
        server.create_bucket()
        deliver(sink, range(10), cut=10)
        sink.close()
        assert sorted(target.numbers()) == expected(range(10))


@pytest.fixture(scope="module")
def secure(certificates: Path) -> Iterator[S3Server]:
    """A server with TLS that knows no account."""
    with S3Server(certificate=certificates / "server.crt", accounts=True) as server:
        yield server


def probe(server: S3Server, **options: Any) -> None:
    target = Target(f"s3://{server.bucket}/x", **server.options, **FAST, **options)
    SINK.probe(target.settings, name="p")


def test_a_login_that_fails(secure: S3Server, certificates: Path) -> None:
    with pytest.raises(SinkRefusedError, match=r"does not exist|Forbidden") as caught:
        probe(secure, client_kwargs={"verify": str(certificates / "ca.crt")})
    assert "planted" not in str(caught.value)
    assert "an-access-key" not in str(caught.value)


def test_a_certificate_that_is_not_trusted(secure: S3Server, certificates: Path) -> None:
    for options in ({}, {"client_kwargs": {"verify": str(certificates / "other.crt")}}):
        with pytest.raises(SinkRefusedError, match="SSL") as caught:
            probe(secure, **options)
        assert "TLS" in caught.value.hint


def test_a_bucket_that_is_missing(s3_server: S3Server) -> None:
    target = Target("s3://missing/x", **s3_server.options)
    with pytest.raises(SinkRefusedError, match="does not exist") as caught:
        SINK.probe(target.settings, name="p")
    assert "bucket" in caught.value.hint
    with pytest.raises(SinkRefusedError):
        target.sink().open(ORIGIN)
    findings = list(SINK.check(target.settings))
    assert [each.severity.value for each in findings] == ["error"]


def test_an_unknown_protocol() -> None:
    with pytest.raises(SinkRefusedError, match="Protocol not known"):
        SINK.probe(Target("s4://bucket/x").settings, name="p")
