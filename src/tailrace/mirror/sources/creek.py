"""The source for Creek's producers: `nats://host:4222?creek=NAMESPACE&database=NAME`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tailrace.client import creek
from tailrace.errors import ConfigError
from tailrace.mirror.sources.source import MirrorSource, SourceType, StreamNames

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tailrace.client.creek import Creek
    from tailrace.mirror.sources.source import SourceAddress, SourceOptions

_EXAMPLE = "nats://host:4222?creek=CREEK&database=shop"


@contextlib.asynccontextmanager
async def _open(address: SourceAddress, options: SourceOptions) -> AsyncIterator[MirrorSource]:
    if options.streams != StreamNames():
        raise ConfigError(
            "--stream, --snapshots and --subjects are only for pipelines of shape bridge",
            hint="Creek's namespace names the streams: remove these options.",
        )
    namespace, database = address.parameters["creek"], address.parameters.get("database")
    async with creek.connect(
        address.url, namespace=namespace, credentials=options.credentials
    ) as producers:
        yield producers.feed(database or await _only_database(producers))


async def _only_database(producers: Creek) -> str:
    databases = await producers.databases()
    if len(databases) != 1:
        raise ConfigError(
            "--from must name a database, because the namespace does not have exactly one",
            hint=f"Databases: {', '.join(databases) or 'none so far'}. Write {_EXAMPLE}",
        )
    return databases[0]


SOURCE = SourceType(
    selector="creek", parameters=frozenset({"database"}), example=_EXAMPLE, open=_open
)
