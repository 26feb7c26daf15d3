"""The source for pipelines of shape `bridge`: `nats://host:4222`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tailrace import client
from tailrace.mirror.sources.source import MirrorSource, SourceType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tailrace.mirror.sources.source import SourceAddress, SourceOptions


@contextlib.asynccontextmanager
async def _open(address: SourceAddress, options: SourceOptions) -> AsyncIterator[MirrorSource]:
    streams = options.streams
    async with client.connect(
        address.url, credentials=options.credentials,
        stream=streams.stream, snapshots=streams.snapshots, subjects=streams.subjects,
    ) as connected:  # fmt: skip
        yield connected


SOURCE = SourceType(selector="", example="nats://host:4222", open=_open)
