"""Names of Creek's streams, subjects and requests, in its two layouts.

|                   | namespace: Creek in 2023        | database: Creek in 2025         |
|-------------------|---------------------------------|---------------------------------|
| streams           | NS_wal, NS_schema, NS_snap      | NS_wal_DB, NS_schema_DB, …      |
| their subjects    | NS.*.wal.>                      | NS_wal_DB.>                     |
| changes, schemas  | NS.DB.wal.SCHEMA.TABLE          | NS_wal_DB.SCHEMA.TABLE          |
| a snapshot        | NS.DB.snap.SCHEMA.TABLE.TIME_ID | NS_snap_DB.SCHEMA.TABLE.TIME_ID |
| schema requests   | NS._schema, NS._schemas         | NS_schema_DB                    |
| snapshot requests | NS._snapshot                    | NS_snap_DB                      |

Producer and client take every name from here. The settings import this module, so it imports no
encoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tailrace.jetstream.names import token

LayoutName = Literal["namespace", "database"]
Kind = Literal["wal", "schema", "snap"]
KINDS: tuple[Kind, ...] = ("wal", "snap", "schema")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLayout:
    """The names of one namespace; with `database`, of one database in it.

    >>> StreamLayout(namespace="CREEK").subject("wal", "shop", "public", "users")
    'CREEK.shop.wal.public.users'
    >>> StreamLayout(namespace="CREEK", database="shop").subject("wal", "shop", "public", "users")
    'CREEK_wal_shop.public.users'
    """

    namespace: str
    database: str = ""
    """The database as a token of a subject. Empty: all databases share the streams."""

    @classmethod
    def of(cls, namespace: str, layout: LayoutName, database: str) -> StreamLayout:
        """The names that the messages of a database have in a layout.

        Without a database, those that all databases share.
        """
        own = layout == "database" and database
        return cls(namespace=namespace, database=token(database) if own else "")

    @classmethod
    def of_stream(cls, namespace: str, layout: LayoutName, stream: str) -> StreamLayout:
        """The names that go with a stream of changes; ValueError if it has another name.

        >>> StreamLayout.of_stream("CREEK", "database", "CREEK_wal_shop").snapshot_request
        'CREEK_snap_shop'
        """
        if layout == "namespace":
            return cls(namespace=namespace)
        prefix = f"{namespace}_wal_"
        if not stream.startswith(prefix) or stream == prefix:
            raise ValueError(
                f"with layout database, the stream of changes must be named {prefix}DATABASE, "
                f"got {stream!r}"
            )
        return cls(namespace=namespace, database=stream.removeprefix(prefix))

    def check_snapshots(self, request: str, stream: str) -> None:
        """Raise ValueError if snapshots have a request or a stream that clients do not find.

        With layout namespace the names may differ, but must not be those of other shapes.
        """
        found = request, stream
        expected = self.snapshot_request, self.stream("snap")
        if stream == "INIT" or (self.database and found != expected):
            raise ValueError(
                f"with shape creek, `snapshots` needs a request such as {expected[0]} and a stream "
                f"of its own such as {expected[1]} that takes {self.stream_subjects('snap')}"
            )

    def stream(self, kind: Kind) -> str:
        """The stream of one kind of message."""
        shared = f"{self.namespace}_{kind}"
        return f"{shared}_{self.database}" if self.database else shared

    def stream_subjects(self, kind: Kind) -> str:
        """The subjects of a stream, as a wildcard."""
        return f"{self._prefix(kind, '*')}.>"

    def template(self, kind: Kind) -> str:
        """The subject of a table with placeholders, as sinks take it."""
        return f"{self._prefix(kind, '{database}')}.{{schema}}.{{table}}"

    def subject(self, kind: Kind, database: str, schema: str, table: str) -> str:
        """The subject of a table's messages."""
        return f"{self._prefix(kind, token(database))}.{token(schema)}.{token(table)}"

    def _prefix(self, kind: Kind, database: str) -> str:
        return self.stream(kind) if self.database else f"{self.namespace}.{database}.{kind}"

    @property
    def schema_requests(self) -> tuple[str, ...]:
        """The subjects of requests for schemas: Creek's client and its guide differ."""
        if self.database:
            return (self.stream("schema"),)
        return f"{self.namespace}._schema", f"{self.namespace}._schemas"

    @property
    def snapshot_request(self) -> str:
        """The subject of requests for snapshots."""
        return self.stream("snap") if self.database else f"{self.namespace}._snapshot"
