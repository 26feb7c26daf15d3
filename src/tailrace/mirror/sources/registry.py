"""Addresses as sources: a server, and whose messages there are to be read."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from urllib.parse import parse_qsl

from tailrace import client
from tailrace.client import creek
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tailrace.client.creek import Creek
    from tailrace.mirror.sources.source import MirrorSource

_CREEK = "nats://host:4222?creek=CREEK&database=shop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A NATS server; with a namespace, of Creek's producers there.

    >>> Address.parse("nats://a,nats://b?creek=CREEK&database=shop")
    Address(url='nats://a,nats://b', creek='CREEK', database='shop')
    """

    url: str
    creek: str | None = None
    database: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an address; what is behind the question mark is for us."""
        url, mark, query = text.partition("?")
        found = dict(parse_qsl(query, keep_blank_values=True))
        wrong = sorted(found.keys() - {"creek", "database"})
        if mark and (wrong or not found.get("creek") or found.get("database") == ""):
            # Not the address itself: it may hold a password.
            raise ConfigError(
                f"--from has a setting that is not known: {wrong[0]}"
                if wrong
                else "--from names no namespace of Creek's, or no database",
                hint=f"For Creek's producers write {_CREEK}.",
            )
        return cls(url=url, creek=found.get("creek"), database=found.get("database"))

    @contextlib.asynccontextmanager
    async def opened(
        self, *, credentials: Path | None, stream: str, snapshots: str, subjects: str
    ) -> AsyncIterator[MirrorSource]:
        """Connect. The streams' names are those of the bridge; Creek has its own."""
        if self.creek is None:
            async with client.connect(
                self.url, credentials=credentials,
                stream=stream, snapshots=snapshots, subjects=subjects,
            ) as connected:  # fmt: skip
                yield connected
            return
        async with creek.connect(
            self.url, namespace=self.creek, credentials=credentials
        ) as producers:
            yield producers.feed(self.database or await _only(producers))


async def _only(producers: Creek) -> str:
    """The database, if there is one alone."""
    found = await producers.databases()
    if len(found) != 1:
        raise ConfigError(
            "--from does not say which database",
            hint=f"There are {', '.join(found) or 'none so far'}. Write {_CREEK}.",
        )
    return found[0]
