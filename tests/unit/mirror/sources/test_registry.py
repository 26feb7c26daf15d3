"""Addresses of sources, and sources of other packages."""

from __future__ import annotations

import asyncio
import contextlib
from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import ConfigError
from tailrace.mirror.sources import registry
from tailrace.mirror.sources.registry import SelectedSource
from tailrace.mirror.sources.source import SourceOptions, SourceType, StreamNames

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.mark.parametrize(
    "text",
    [
        "nats://h?", "nats://h?creek=", "nats://h?creek=A&database=", "nats://h?other=1",
        "nats://h?database=shop", "nats://h?=x",
    ],
)  # fmt: skip
def test_invalid_addresses_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SelectedSource.parse(text)
    assert "creek=CREEK" in caught.value.hint


def test_parameters_select_the_source() -> None:
    bridge = SelectedSource.parse("nats://u:p@h")
    assert (bridge.type.selector, bridge.address.url) == ("", "nats://u:p@h")
    creek = SelectedSource.parse("nats://h?database=a%20b&creek=NS")
    assert (creek.type.selector, creek.address.url) == ("creek", "nats://h")
    assert creek.address.parameters == {"creek": "NS", "database": "a b"}


def test_creek_refuses_the_stream_names_of_a_bridge() -> None:
    async def open_source() -> None:
        options = SourceOptions(streams=StreamNames(stream="OTHER"))
        async with SelectedSource.parse("nats://h?creek=NS").open(options):
            pass

    with pytest.raises(ConfigError, match="for pipelines of shape bridge"):
        asyncio.run(open_source())


def test_entry_point_adds_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    @contextlib.asynccontextmanager
    async def open_source(address: Any, options: Any) -> AsyncIterator[Any]:
        opened.append((address.url, dict(address.parameters), options.credentials))
        yield SimpleNamespace()

    source = SourceType(selector="fake", example="nats://host?fake=1", open=open_source)
    entry_point = EntryPoint(name="fake", value="fake_package:SOURCE", group=registry.GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda _: source)
    monkeypatch.setattr(
        registry,
        "entry_points",
        lambda **query: EntryPoints([entry_point]).select(**query),
    )
    monkeypatch.setattr(registry, "_SOURCES", dict(registry._SOURCES))

    async def run() -> None:
        async with SelectedSource.parse("nats://h?fake=1").open(SourceOptions()):
            pass

    asyncio.run(run())
    assert opened == [("nats://h", {"fake": "1"}, None)]
