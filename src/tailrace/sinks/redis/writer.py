"""Messages as scripts, or as single commands where no script can have all their keys."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode import columns
from tailrace.sinks.contract import Receipt
from tailrace.sinks.redis import resp, scripts
from tailrace.sinks.redis.account import Account, hash_tag, key_of
from tailrace.sinks.redis.operations import operations_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Protocol

    from tailrace.position import Position
    from tailrace.sinks.contract import Lane
    from tailrace.sinks.redis.resp import Bulks
    from tailrace.sinks.redis.servers import Servers
    from tailrace.sinks.redis.settings import RedisSink

    class Writer(Protocol):
        """Sends messages of one lane."""

        def held(self, batch: pa.RecordBatch) -> int:
            """How many of the first rows Redis is known to hold."""

        def write(self, rows: pa.RecordBatch) -> None:
            """Send messages."""

        def receipt(self) -> Receipt:
            """What was sent since the last receipt, once all answers are received."""


_AHEAD = 4
"""Requests that may be without an answer on a connection. More would only take memory."""


class Scripts:
    """Writes through accounts: each script has a position."""

    def __init__(
        self, servers: Servers, settings: RedisSink, lane: Lane, *, after: Position
    ) -> None:
        self._servers = servers
        self._settings = settings
        self._lane = lane
        self._after = after
        self._key = key_of(settings.prefix, lane)
        self._split = settings.cluster and settings.mode == "stream"
        self._accounts: dict[bytes, Account] = {}
        self._rows = self._bytes = 0
        if not self._split:
            self._account(self._key)

    def held(self, batch: pa.RecordBatch) -> int:
        """Known only if there is one position for all."""
        return 0 if self._split else self._account(self._key).held(batch)

    def write(self, rows: pa.RecordBatch) -> None:
        """Send the messages that Redis does not hold."""
        for account, own in self._divided(rows):
            for piece in _pieces(own, self._settings):
                left = account.missing(piece)
                if left.num_rows:
                    account.send(*self._body(left), ahead=_AHEAD - 1)
                    self._rows += left.num_rows
                    self._bytes += _size(left)

    def receipt(self) -> Receipt:
        """Fails if messages were skipped that are not those that Redis holds."""
        repeated = skipped = 0
        for account in self._accounts.values():
            account.verify()
            repeated, skipped = repeated + account.repeated, skipped + account.skipped
            account.repeated = account.skipped = 0
        receipt = Receipt(
            messages=self._rows - repeated, bytes=self._bytes, duplicates=repeated + skipped
        )
        self._rows = self._bytes = 0
        return receipt

    def _divided(self, rows: pa.RecordBatch) -> Iterator[tuple[Account, pa.RecordBatch]]:
        if not self._split:
            yield self._account(self._key), rows
            return
        coded = rows.column("destination").dictionary_encode()
        tags = [hash_tag(each) or b"" for each in coded.dictionary.to_pylist()]
        numbers = {tag: at for at, tag in enumerate(dict.fromkeys(tags))}
        number = np.array([numbers[tag] for tag in tags], np.int64)[coded.indices.to_numpy()]
        order = np.argsort(number, kind="stable")
        bounds = np.searchsorted(number[order], np.arange(1, len(numbers)))
        for tag, own in zip(numbers, np.split(order, bounds), strict=False):
            account = self._account(b"%b:{%b}" % (self._key, tag))
            yield account, rows.take(pa.array(own))

    def _account(self, key: bytes) -> Account:
        if key not in self._accounts:
            account = Account(self._servers.of(key), key, self._lane)
            account.open(self._after)
            self._accounts[key] = account
        return self._accounts[key]

    def _body(self, rows: pa.RecordBatch) -> tuple[bytes, Bulks, Bulks]:
        """Script, keys and arguments."""
        match self._settings.mode:
            case "stream":
                return scripts.STREAM, *_entries(rows, self._settings)
            case "string":
                operations = operations_of(rows)
                keys, values = operations.bulks()
                how = resp.bulks([b"%d" % _expire_ms(self._settings), operations.plan])
                return scripts.STRING, keys, resp.Bulks(values.values + 2, _joined(how, values))
            case "publish":
                published = resp.column_bulks(rows.column("destination"), rows.column("payload"))
                return scripts.PUBLISH, resp.bulks([]), published


class Commands:
    """Keys of a cluster: each server gets its own, without a position."""

    def __init__(self, servers: Servers, settings: RedisSink) -> None:
        self._servers = servers
        self._settings = settings
        self._rows = self._bytes = 0

    def held(self, batch: pa.RecordBatch) -> int:
        """Not known."""
        del batch
        return 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Send all messages."""
        for piece in _pieces(rows, self._settings):
            operations = operations_of(piece)
            commands = operations.commands(expire_ms=_expire_ms(self._settings))
            own = defaultdict(list)
            for at, key in enumerate(operations.keys.to_pylist()):
                own[self._servers.of(key)].append(at)
            for connection, chosen in own.items():
                connection.receive(ahead=_AHEAD - 1)
                data = columns.content(commands.take(pa.array(chosen)))
                connection.send([data], lambda _: None, answers=len(chosen))
            self._rows += piece.num_rows
            self._bytes += _size(piece)

    def receipt(self) -> Receipt:
        """All that was sent."""
        receipt = Receipt(messages=self._rows, bytes=self._bytes)
        self._rows = self._bytes = 0
        return receipt


def _pieces(rows: pa.RecordBatch, settings: RedisSink) -> Iterator[pa.RecordBatch]:
    """The rows of one script each."""
    sizes = np.cumsum(pc.binary_length(rows.column("payload")).to_numpy(), dtype=np.int64)
    at = 0
    while at < rows.num_rows:
        sent = int(sizes[at - 1]) if at else 0
        fits = int(np.searchsorted(sizes, sent + settings.batch_bytes, side="right"))
        count = min(at + settings.batch_rows, max(fits, at + 1)) - at
        yield rows.slice(at, count)
        at += count


def _entries(rows: pa.RecordBatch, settings: RedisSink) -> tuple[Bulks, Bulks]:
    """Streams, and the arguments of their entries."""
    coded = rows.column("destination").dictionary_encode()
    # KEYS[1] is the hash of positions.
    numbers = coded.indices.to_numpy().astype(np.int64) + 2
    key = rows.column("key")
    signed = np.where(columns.valid(key), numbers, -numbers)
    if settings.ids == "auto":
        entry: bytes | pa.BinaryArray = b"*"
    else:
        dash = columns.constant(b"-")
        entry = resp.join(
            resp.digits(rows.column("lsn")), dash, resp.digits(rows.column("ordinal"))
        )
    how = resp.bulks([b"=" if settings.maxlen_exact else b"~", b"%d" % settings.maxlen])
    entries = resp.column_bulks(
        resp.digits(signed),
        entry,
        rows.column("id"),
        pc.fill_null(key, b""),
        rows.column("payload"),
    )
    streams = resp.bulks(coded.dictionary.to_pylist())
    return streams, resp.Bulks(entries.values + 2, _joined(how, entries))


def _size(rows: pa.RecordBatch) -> int:
    return int(pc.sum(pc.binary_length(rows.column("payload"))).as_py() or 0)


def _joined(first: Bulks, second: Bulks) -> bytes:
    return bytes(first.data) + bytes(second.data)


def _expire_ms(settings: RedisSink) -> int:
    return round(settings.expire_s * 1000)
