"""Benches of files: in a local folder, in memory, and in an object store."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow.parquet as pq
from typing_extensions import override

from tests.contract.benches.bench import Bench

if TYPE_CHECKING:
    from tests.contract.benches.bench import Delivered
    from tests.fix_s3 import S3Server


class FileBench(Bench):
    """Parquet files in a folder."""

    prefix = "cdc"
    once = True

    def __init__(self, url: str, *, fences: bool, **options: Any) -> None:
        self.fences = fences
        self._url = url
        self._options = options

    def keys(self, port: int, timeout_s: float) -> dict[str, Any]:
        del port, timeout_s
        return {"type": "file", "url": self._url, "options": self._options}

    def delivered(self) -> list[Delivered]:
        files, root = fsspec.url_to_fs(self._url, **self._options, use_listings_cache=False)
        found: list[Delivered] = []
        for path in sorted(files.find(root)):
            if path.endswith(".parquet"):
                table = pq.read_table(io.BytesIO(files.cat_file(path)))
                assert path.removeprefix(f"{root}/").startswith(table["destination"][0].as_py())
                names = [name.encode() for name in table["id"].to_pylist()]
                folders = [name.encode() for name in table["destination"].to_pylist()]
                found += zip(folders, names, table["payload"].to_pylist(), strict=True)
        return found


class S3Bench(FileBench):
    """A folder in a bucket."""

    acceptance = re.compile(rb"^PUT [^ ]*\.commit")
    """The record that completes files, before they have their names."""
    visible_at_once = False

    def __init__(self, server: S3Server, folder: str) -> None:
        super().__init__(f"s3://{server.bucket}/{folder}", fences=True, **server.options)
        self.port = server.port

    @override
    def keys(self, port: int, timeout_s: float) -> dict[str, Any]:
        waits = {"connect_timeout": timeout_s, "read_timeout": timeout_s}
        own = {
            "endpoint_url": f"http://127.0.0.1:{port}",
            "config_kwargs": {"retries": {"max_attempts": 0}, **waits},
        }
        return {"type": "file", "url": self._url, "options": {**self._options, **own}}
