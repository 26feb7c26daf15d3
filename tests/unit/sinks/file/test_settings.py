from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tailrace.change import Op
from tailrace.sinks.file.destination import FolderTemplate, is_folder, token
from tailrace.sinks.file.settings import FileSink
from tailrace.sinks.file.sink_type import SINK

KEYS = {"key": "AKIA", "secret": "planted-secret"}


def made(**keys: Any) -> FileSink:
    return FileSink.model_validate({"type": "file", "url": "s3://bucket/folder", **keys})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"url": "relative/folder"}, "absolute path"),
        ({"url": "file://host/folder"}, "absolute path"),
        ({"url": "simplecache::s3://bucket/x"}, "absolute path"),
        ({"url": "s3://bucket/a::zip://b"}, "chain"),
        ({"url": "sftp://user:planted-secret@host/x"}, "user or a password"),
        ({"url": "s3://bucket/x?versionId=1"}, "query"),
        ({"path": "../{table}"}, "relative path"),
        ({"path": "/{table}"}, "relative path"),
        ({"path": "{schema}//{table}"}, "relative path"),
        ({"path": "_tailrace/{table}"}, "relative path"),
        ({"path": ""}, "relative path"),
        ({"compression": "gzip"}, "cannot be used"),
        ({"compression": "snappy", "format": "jsonl"}, "cannot be used"),
        ({"url": "/folder", "options": {"key": "x"}}, "no `options`"),
        ({"roll_bytes": "5GiB"}, "less than or equal"),
    ],
)
def test_invalid_settings(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        made(**keys)
    assert "planted-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "allowed"),
    [
        ({"options": KEYS | {"endpoint_url": "http://minio.example.com:9000"}}, False),
        ({"options": KEYS | {"client_kwargs": {"endpoint_url": "http://10.0.0.1"}}}, False),
        ({"options": KEYS | {"use_ssl": False}}, False),
        ({"options": {"connection_string": "BlobEndpoint=http://a.example.com;X=1"}}, False),
        ({"url": "ftp://host/x", "options": {"username": "u", "password": "p"}}, False),
        ({"options": KEYS | {"endpoint_url": "http://127.0.0.1:9000"}}, True),
        ({"options": KEYS | {"endpoint_url": "http://127.0.0.1", "use_ssl": False}}, True),
        ({"options": KEYS | {"endpoint_url": "https://minio.example.com"}}, True),
        ({"options": KEYS}, True),
        ({"options": {"anon": True, "endpoint_url": "http://minio.example.com"}}, True),
    ],
)
def test_credentials_are_not_used_unencrypted(keys: dict[str, Any], allowed: bool) -> None:
    if allowed:
        made(**keys)
        return
    with pytest.raises(ValidationError, match="unencrypted"):
        made(**keys)


def test_options_are_never_shown() -> None:
    options = KEYS | {"client_kwargs": {"aws": {"token": "planted-secret"}, "n": 3, "on": True}}
    settings = made(options=options)
    for shown in (
        repr(settings),
        str(settings),
        settings.model_dump_json(),
        repr(settings.options),
    ):
        assert "planted-secret" not in shown
    assert settings.plain_options == options
    assert pickle.loads(pickle.dumps(settings)).plain_options == options


def test_local_urls() -> None:
    assert made(url="/data/a b#c").folder == Path("/data/a b#c")
    assert made(url="file:///data/a%20b").folder == Path("/data/a b")
    assert made(url="/data").local
    assert not made().local


@pytest.mark.parametrize(
    "name", ["..", ".", "", "/", "a/../b", "_tailrace", ".hidden", "a\\b", "a\nb", "žluť", "x" * 63]
)
def test_any_name_is_one_part_below_the_url(name: str) -> None:
    template = SINK.destination("{schema}/{table}", database="d")
    folder = template.fill(name, name, Op.INSERT)
    assert is_folder(folder.encode())
    assert folder.count("/") == 1
    joined = FolderTemplate("{table}", database="d").fill(name * 4, name * 4, Op.INSERT)
    assert is_folder(joined.encode())
    assert "/" not in joined


def test_names_do_not_collide() -> None:
    names = ["_a", "-x5Fa", "a.b", "a-x2Eb", "a-", "a-x2D", "a", "A", ".", "..", "", "-x"]
    assert len({token(name) for name in names}) == len(names)
    long = ["ž" * 40 + end for end in "ab"]
    template = FolderTemplate("{table}", database="d")
    assert len({template.fill("s" * 63, name, Op.INSERT) for name in long}) == 2


@pytest.mark.parametrize(
    "folder", [b"a" * 256, b"/".join([b"a" * 200] * 4), b"\xff", b"a\x00b", b"a/.b", b".", b"a/_b"]
)
def test_folders_that_are_refused(folder: bytes) -> None:
    assert not is_folder(folder)
