from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import CorruptError
from tailrace.state_file import StateFile

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    segment: str
    offset: int = 0


def test_a_value_comes_back(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "made" / "cursor", Cursor)
    assert state.read() is None
    state.write(Cursor(segment="a", offset=3))
    assert StateFile(tmp_path / "made" / "cursor", Cursor).read() == Cursor(segment="a", offset=3)
    assert [each.name for each in (tmp_path / "made").iterdir()] == ["cursor"]


def test_an_unchanged_value_is_not_written_again(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "cursor", Cursor)
    state.write(Cursor(segment="a"))
    before = state.path.stat().st_ino
    state.write(Cursor(segment="a"))
    assert state.path.stat().st_ino == before
    state.write(Cursor(segment="b"))
    assert state.read() == Cursor(segment="b")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"offset": 1}', b'{"segment": 1}', b"\xff"]
)
def test_an_invalid_file_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    state = StateFile(tmp_path / "cursor", Cursor)
    state.path.write_bytes(content)
    with pytest.raises(CorruptError, match="cursor is invalid"):
        state.read()
    assert state.read_or(Cursor(segment="default")) == Cursor(segment="default")


def test_a_removed_file_is_written_again(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "cursor", Cursor)
    state.remove()
    state.write(Cursor(segment="a"))
    state.remove()
    assert state.read() is None
    state.write(Cursor(segment="a"))
    assert state.read() == Cursor(segment="a")


def test_plain_types_are_values_too(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "joined", dict[str, int])
    state.write({"public.orders": 7})
    assert state.read() == {"public.orders": 7}


def test_a_file_that_is_not_durable_creates_no_folder(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "status" / "capture.json", dict[str, int], durable=False)
    with pytest.raises(FileNotFoundError):
        state.write({"pid": 1})
    state.path.parent.mkdir()
    state.write({"pid": 1})
    assert state.read() == {"pid": 1}
    assert [path.name for path in state.path.parent.iterdir()] == ["capture.json"]
