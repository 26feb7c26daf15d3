"""Damage to the files of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.log.format.segment import list_segments, read_header, walk
from tailrace.log.store import LocalStore

if TYPE_CHECKING:
    from pathlib import Path


def file_of(store: LocalStore, number: int) -> Path:
    return store.folder / list_segments(store)[number].file


def put(path: Path, data: bytes | bytearray) -> None:
    """At once: a follower that reads again and again sees no half of it."""
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.rename(path)


def flip(path: Path, at: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    put(path, data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def cut_entry(path: Path) -> None:
    """What is left is whole, but it is not all."""
    store, folder = LocalStore(path.parent), path.parent
    name = next(each for each in list_segments(store) if folder / each.file == path)
    *_, last = walk(store, name, read_header(store, name)[1])
    path.write_bytes(path.read_bytes()[: last.start])


def extend(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more than there was")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def index_of(path: Path) -> None:
    index = path.with_suffix(".idx")
    index.write_bytes(index.read_bytes()[:-1])
