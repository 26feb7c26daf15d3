"""Every store of the sink `file` keeps the contract of `tailrace.sinks.file.store`."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from tailrace.sinks.file.settings import FileSink
from tailrace.sinks.file.sink_type import store_of
from tailrace.sinks.file.store import Move

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.sinks.file.store import Store
    from tests.fix_s3 import S3Server


@pytest.fixture(params=["local", "memory", "s3"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    keys: dict[str, object] = {"url": f"memory://{uuid.uuid4().hex}"}
    if request.param == "local":
        keys = {"url": str(request.getfixturevalue("tmp_path") / "files")}
    elif request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        keys = {"url": f"s3://{server.bucket}/{uuid.uuid4().hex}", "options": server.options}
    made = store_of(FileSink.model_validate({"type": "file", **keys}))
    yield made
    made.close()


def stage(store: Store, name: str, content: bytes) -> None:
    store.spool(name).write_bytes(content)
    store.stage([name])


def test_a_store_that_is_empty(store: Store) -> None:
    store.check()
    assert store.names("_tailrace/p") == []
    with pytest.raises(FileNotFoundError):
        store.read("_tailrace/p/0/1.commit")
    store.remove(["_tailrace/p/0/1.commit"])


def test_a_file_is_created_once(store: Store) -> None:
    store.create("_tailrace/p/0/1.commit", b"one")
    with pytest.raises(FileExistsError):
        store.create("_tailrace/p/0/1.commit", b"two")
    assert store.read("_tailrace/p/0/1.commit") == b"one"
    assert store.names("_tailrace/p") == ["_tailrace/p/0/1.commit"]
    assert store.names("_tailrace/p/0") == ["_tailrace/p/0/1.commit"]
    store.remove(["_tailrace/p/0/1.commit"])
    assert store.names("_tailrace/p") == []


def test_a_file_has_its_final_name_when_it_is_published(store: Store) -> None:
    moves = [
        Move(temporary=f"_tailrace/p/0/{number}.tmp", final=f"a b/ž/{number}.x")
        for number in range(5)
    ]
    for move in moves:
        stage(store, move.temporary, move.final.encode())
    assert sorted(store.names("")) == [move.temporary for move in moves]
    store.publish(moves[:3])
    # Another sink has moved some of them.
    store.publish(moves)
    assert sorted(store.names("")) == [move.final for move in moves]
    assert [store.read(move.final) for move in moves] == [move.final.encode() for move in moves]


def test_what_is_not_staged_is_discarded(store: Store) -> None:
    store.spool("_tailrace/p/0/1.tmp").write_bytes(b"x")
    store.discard(["_tailrace/p/0/1.tmp", "_tailrace/p/0/2.tmp"])
    assert store.names("_tailrace") == []
