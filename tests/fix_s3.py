"""Fixtures for the S3 API: a server of moto in a process of its own, one per session."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from tests.fix_aws import MotoServer

if TYPE_CHECKING:
    from collections.abc import Iterator


class S3Server(MotoServer):
    """A server with one bucket."""

    bucket = "bucket"

    @property
    def options(self) -> dict[str, Any]:
        """The options of fsspec."""
        return {
            "key": "an-access-key",
            "secret": "planted-secret-of-s3",
            "endpoint_url": self.url,
        }

    def create_bucket(self) -> None:
        """Create the bucket."""
        files = fsspec.filesystem("s3", **self.options, skip_instance_cache=True)
        files.mkdir(self.bucket)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A server, shared: every test has a folder of its own."""
    if importlib.util.find_spec("moto") is None:
        pytest.skip("moto is not installed")
    with S3Server() as server:
        server.create_bucket()
        yield server
