from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import SinkError, SinkFullError, SinkRefusedError, SinkUnreachableError
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.file import local
from tailrace.sinks.file.failures import translate
from tailrace.sinks.file.settings import FileSink
from tailrace.sinks.file.sink_type import SINK
from tests.unit.sinks.file.stores import positions_in
from tests.unit.sinks.rows import rows

if TYPE_CHECKING:
    from pathlib import Path


class NoCredentialsError(Exception):
    """As botocore names it."""


class HttpResponseError(Exception):
    """As the library of Azure names it."""

    def __init__(self, status_code: int) -> None:
        super().__init__()
        self.status_code = status_code


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), SinkFullError),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), SinkFullError),
        (PermissionError(errno.EACCES, "Permission denied"), SinkRefusedError),
        (PermissionError("Access Denied."), SinkRefusedError),
        (OSError(errno.EROFS, "Read-only file system"), SinkRefusedError),
        (FileNotFoundError("The specified bucket does not exist"), SinkRefusedError),
        (OSError(errno.EXDEV, "Invalid cross-device link"), SinkRefusedError),
        (ImportError("Install s3fs to access S3"), SinkRefusedError),
        (ValueError("Protocol not known: s4"), SinkRefusedError),
        (NoCredentialsError("Unable to locate credentials"), SinkRefusedError),
        (HttpResponseError(403), SinkRefusedError),
        (HttpResponseError(503), SinkUnreachableError),
        (OSError(errno.EBUSY, "Please reduce your request rate."), SinkUnreachableError),
        (OSError(errno.EIO, "Input/output error"), SinkUnreachableError),
        (TimeoutError(), SinkUnreachableError),
        (ConnectionRefusedError(), SinkUnreachableError),
        (RuntimeError("anything"), SinkUnreachableError),
    ],
)
def test_errors(error: Exception, kind: type[SinkError]) -> None:
    made = translate(error, "cannot write")
    assert type(made) is kind
    assert str(made).startswith("cannot write: ")
    assert made.hint


def test_texts_do_not_contain_options() -> None:
    options = {"key": "planted-key", "client_kwargs": {"token": "planted-token"}}
    made = translate(ValueError("planted-key and planted-token"), "x", options)
    assert "planted" not in str(made)


def test_a_full_disk_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a disk that is full at any fsync WHEN it has space THEN everything is there, once."""
    settings = FileSink(type="file", url=str(tmp_path))
    sync = local._sync
    for full_at in range(1, 12):
        calls = 0

        def failing(path: Path, at: int = full_at) -> None:
            nonlocal calls
            calls += 1
            if calls == at:
                raise OSError(errno.ENOSPC, "No space left on device")
            sync(path)

        root = tmp_path / str(full_at)
        settings = FileSink(type="file", url=str(root))
        monkeypatch.setattr(local, "_sync", failing)
        sink = SINK.open(settings, Lane(pipeline="p"))
        failed = False
        try:
            sink.open(ORIGIN)
            sink.write(rows(range(5), destination=b"a"))
            sink.flush()
        except SinkFullError:
            failed = True
        assert failed == (calls >= full_at)
        monkeypatch.setattr(local, "_sync", sync)
        sink.open(ORIGIN)
        sink.write(rows(range(6), destination=b"a"))
        receipt = sink.flush()
        assert receipt.messages + receipt.duplicates == 6
        sink.close()
        assert len(positions_in(root)) == len(set(positions_in(root))) == 6


@pytest.mark.parametrize(
    ("readable_by", "modes"),
    [("owner", (0o600, 0o700)), ("group", (0o640, 0o750)), ("all", (0o644, 0o755))],
)
def test_who_may_read(tmp_path: Path, readable_by: str, modes: tuple[int, int]) -> None:
    settings = {"type": "file", "url": str(tmp_path / "new"), "readable_by": readable_by}
    sink = SINK.open(FileSink.model_validate(settings), Lane(pipeline="p"))
    sink.open(ORIGIN)
    sink.write(rows(range(2), destination=b"a/b"))
    sink.flush()
    (path,) = (tmp_path / "new").rglob("*.parquet")
    assert path.stat().st_mode & 0o777 == modes[0]
    assert path.parent.stat().st_mode & 0o777 == modes[1]
    assert (tmp_path / "new").stat().st_mode & 0o777 == modes[1]


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"")
    settings = FileSink(type="file", url=str(tmp_path / "taken"))
    with pytest.raises(SinkRefusedError, match="is not a folder"):
        SINK.probe(settings, name="p")
    SINK.probe(FileSink(type="file", url=str(tmp_path / "not/yet")), name="p")
    assert not (tmp_path / "not").exists()
    findings = list(SINK.check(settings))
    assert [each.severity.value for each in findings] == ["error"]
