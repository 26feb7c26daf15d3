"""Changes of a real source as messages: captured, decoded and encoded, without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.decode.decoder import Decoder
from tailrace.encode.facts import Origin
from tailrace.encode.shapes.registry import SHAPES
from tailrace.log.reader import Earliest
from tailrace.message import MESSAGES
from tailrace.sinks.postgres.destination import TableTemplate

if TYPE_CHECKING:
    from tailrace.position import Position
    from tests.fix_capture import Captured


@dataclass(slots=True)
class Source:
    """A captured database, and how far it has been read."""

    captured: Captured
    read: Position | None = None

    def messages(self) -> pa.RecordBatch:
        """The changes since the last call, in shape `plain`."""
        self.captured.catch_up()
        log = self.captured.log
        after = log.resolve(Earliest()) if self.read is None else self.read
        upto = log.end().position
        encoder = SHAPES.find("plain").encoder(
            "json",
            destinations=TableTemplate("{schema}.{table}", database="source"),
            origin=Origin(database="source", system_identifier=1),
        )
        decoder = Decoder()
        batches = [
            encoder.encode(group)
            for entry in log.read(after, upto)
            for group in decoder.decode(entry, after, upto)
            if group.relation is not None
        ]
        self.read = upto
        found = pa.Table.from_batches(batches, schema=MESSAGES)
        found = found.sort_by([("lsn", "ascending"), ("ordinal", "ascending")]).combine_chunks()
        return next(iter(found.to_batches()), pa.RecordBatch.from_pylist([], schema=MESSAGES))
