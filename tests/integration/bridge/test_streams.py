"""The streams of a bridge on a real server: created before there is anything to publish."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from structlog.testing import capture_logs

from tailrace import config
from tailrace.backoff import Backoff
from tailrace.run import streams
from tailrace.run.presets import bridge
from tailrace.run.presets.options import BridgeOptions
from tailrace.testing import EmbeddedNats
from tests.jetstream import connected
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from nats.aio.client import Client


def settings(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> config.Config:
    monkeypatch.setenv("NATS_URL", url)
    options = BridgeOptions(pub="my_pub", data=tmp_path)
    return config.load(bridge.write(bridge.settings(options, os.environ), tmp_path))


def stored(url: str) -> dict[str, Any]:
    async def read(client: Client) -> dict[str, Any]:
        found = await client.jetstream(timeout=60).streams_info()
        return {each.config.name or "": (each.created, each.config.subjects) for each in found}

    return connected(url, read)


def create(settings: config.Config) -> None:
    streams.run(settings, threading.Event(), backoff=lambda: Backoff(first_s=0.05, max_s=0.05))


def test_a_server_that_is_down_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a bridge whose NATS server is down WHEN the server starts THEN CDC and INIT exist, and
    a second start of the bridge changes nothing."""
    with EmbeddedNats() as server:
        server.stop()
        found = settings(tmp_path, server.url, monkeypatch)
        with capture_logs() as events:
            thread = threading.Thread(target=create, args=(found,))
            thread.start()
            wait_for(lambda: any(each["event"] == "streams.not_created" for each in events))
            server.start()
            thread.join(LONG_S)
        assert not thread.is_alive()
        first = stored(server.url)
        assert {name: subjects for name, (_, subjects) in first.items()} == {
            "CDC": ["cdc.>"],
            "INIT": ["init.>"],
        }
        create(found)
        assert stored(server.url) == first
