"""Entries → groups: the data path's decoder.

All messages of an entry are read together: kinds, transactions, ordinals and relations as columns,
then the rows of each relation and operation in one go. The decoder keeps the relations in force
between entries, as the stream stated them, and the annotations of a transaction that goes on in the
next entry. `tailrace.log.changes.Decoder` does the same one message at a time; tests hold the two
against each other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Op
from tailrace.decode.group import Cells, Group, Image
from tailrace.decode.rows import Body, read_rows
from tailrace.errors import MalformedError
from tailrace.log.format.entry import Entry, Kind
from tailrace.schema import Relation, TypeName
from tailrace.wire import pgoutput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tailrace.position import Position

    Indices = NDArray[np.int64]

_B, _T, _M, _R, _Y = (ord(letter) for letter in "BTMRY")
_K, _O, _NEW = ord("K"), ord("O"), ord("N")
_ROW_OPS = ((ord("I"), Op.INSERT), (ord("U"), Op.UPDATE), (ord("D"), Op.DELETE))
_EPOCH_MICROS = 946_684_800_000_000
_ANNOTATE = frozenset({"sequin:transaction_annotations.set", "tailrace:annotations.set"})
_FORGET = frozenset({"sequin:transaction_annotations.clear", "tailrace:annotations.clear"})


class Decoder:
    """Turns entries into groups.

    `wanted` chooses relations, `messages` chooses prefixes of logical messages; the changes left
    out still count in the ordinals of the others.
    """

    def __init__(
        self,
        *,
        wanted: Callable[[Relation], bool] = lambda _: True,
        messages: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.relations: dict[int, Relation] = {}
        self.types: dict[int, TypeName] = {}
        self._wanted = wanted
        self._messages = messages
        self._annotated: tuple[int, str | None] = (0, None)

    def decode(
        self, entry: Entry, after: Position | None = None, upto: Position | None = None
    ) -> list[Group]:
        """The changes of an entry in `(after, upto]`, as groups in no particular order."""
        messages = _Messages(entry)
        annotations = self._annotations(messages, entry)
        groups: list[Group] = []
        for run in self._runs(messages):
            groups += self._rows(messages, run)
            groups += self._truncates(messages, run)
        groups += self._logical(messages)
        if annotations is not None:
            groups = [annotations.onto(group) for group in groups]
        if (after is not None and entry.first <= after) or (upto is not None and entry.last > upto):
            groups = [_between(group, after, upto) for group in groups]
        return [group for group in groups if len(group)]

    def _learn(self, value: Relation | TypeName) -> None:
        if isinstance(value, Relation):
            self.relations[value.oid] = value
        else:
            self.types[value.oid] = value

    def _runs(self, messages: _Messages) -> Iterator[slice]:
        """Stretches of messages under the same relations; learns what stands between them."""
        start = 0
        for index in np.flatnonzero((messages.kinds == _R) | (messages.kinds == _Y)).tolist():
            value = pgoutput.parse(messages.raw(index))
            known = self.relations if isinstance(value, Relation) else self.types
            assert isinstance(value, Relation | TypeName)
            before = known.get(value.oid)
            if before == value:
                continue
            if before is not None and index > start:
                yield slice(start, index)
                start = index
            self._learn(value)
        yield slice(start, len(messages.kinds))

    def _relation(self, oid: int) -> Relation:
        try:
            return self.relations[oid]
        except KeyError:
            raise MalformedError(f"a change names relation {oid}, which was never stated") from None

    def _rows(self, messages: _Messages, run: slice) -> Iterator[Group]:
        kinds = messages.kinds[run]
        for letter, op in _ROW_OPS:
            found = np.flatnonzero(kinds == letter) + run.start
            if not len(found):
                continue
            oids = messages.number(found, 1, ">u4")
            first = int(oids[0])
            alike = bool((oids == first).all())
            for oid in [first] if alike else np.unique(oids).tolist():
                relation = self._relation(int(oid))
                if self._wanted(relation):
                    chosen = found if alike else found[oids == oid]
                    yield from self._of_relation(messages, op, relation, chosen)

    def _of_relation(
        self, messages: _Messages, op: Op, relation: Relation, found: Indices
    ) -> Iterator[Group]:
        forms = messages.byte(found, 5)
        allowed = {Op.INSERT: (_NEW,), Op.UPDATE: (_NEW, _K, _O), Op.DELETE: (_K, _O)}[op]
        left = len(found)
        for form in allowed:
            chosen = found if (forms == form).all() else found[forms == form]
            if len(chosen):
                left -= len(chosen)
                yield self._images(messages, op, relation, chosen, form)
        if left:
            raise MalformedError(f"{op.name} of {relation.qualified_name}: a row of unknown form")

    def _images(
        self, messages: _Messages, op: Op, relation: Relation, found: Indices, form: int
    ) -> Group:
        what, columns = relation.qualified_name, len(relation.columns)
        body, ends = messages.body, messages.starts[found + 1]
        pos = messages.starts[found] + 6
        before: Image | None = None
        after: Image | None = None
        if form != _NEW:
            before, pos = read_rows(body, pos, ends, columns, what)
            if op is Op.UPDATE:
                if (body.byte(pos) != _NEW).any():
                    raise MalformedError(f"UPDATE of {what} without a new row")
                pos = pos + 1
        if op is not Op.DELETE:
            after, pos = read_rows(body, pos, ends, columns, what)
        if (pos != ends).any():
            raise MalformedError(f"{op.name} of {what} has bytes behind its end")
        if before is not None and after is not None:
            after = tuple(map(_filled, after, before))
        if before is not None and form == _K:
            before = tuple(
                cells if column.key else None
                for cells, column in zip(before, relation.columns, strict=True)
            )
        return replace(
            messages.group(op, relation, found),
            types=self._types_of(relation),
            before=before,
            after=after,
        )

    def _types_of(self, relation: Relation) -> dict[int, TypeName]:
        oids = {column.type_oid for column in relation.columns}
        return {oid: self.types[oid] for oid in oids if oid in self.types}

    def _truncates(self, messages: _Messages, run: slice) -> Iterator[Group]:
        """A TRUNCATE is one change for each table it names."""
        for index in (np.flatnonzero(messages.kinds[run] == _T) + run.start).tolist():
            message = pgoutput.parse(messages.raw(index))
            assert isinstance(message, pgoutput.Truncate)
            for number, oid in enumerate(message.oids):
                relation = self._relation(oid)
                if self._wanted(relation):
                    group = messages.group(Op.TRUNCATE, relation, np.array([index]))
                    yield replace(group, ordinal=group.ordinal + np.uint64(number))

    def _logical(self, messages: _Messages) -> Iterator[Group]:
        if not len(messages.logical):
            return
        distinct = pc.unique(messages.prefixes).to_pylist()
        chosen = [prefix for prefix in distinct if self._messages(prefix)]
        if not chosen:
            return
        wanted = pc.is_in(messages.prefixes, pa.array(chosen, pa.string()))
        at = np.flatnonzero(wanted.to_numpy(zero_copy_only=False))
        yield replace(
            messages.group(Op.MESSAGE, None, messages.logical[at]),
            prefixes=messages.prefixes.take(pa.array(at)),
            contents=messages.contents.take(pa.array(at)),
        )

    def _annotations(self, messages: _Messages, entry: Entry) -> _Annotations | None:
        """What transactions are annotated with in this entry; None for nothing."""
        going_on = entry.kind is Kind.FRAGMENT and not entry.begins
        carried = self._annotated[1] if going_on and self._annotated[0] == entry.first.lsn else None
        at, texts = [-1], [carried]
        for row in messages.logical_with(_ANNOTATE | _FORGET):
            prefix, content = messages.logical_at(row)
            at.append(int(messages.logical[row]))
            texts.append(_json_text(content) if prefix in _ANNOTATE else None)
        self._annotated = (entry.last.lsn, texts[-1] if not entry.ends else None)
        if not any(texts):
            return None
        begins = np.flatnonzero(messages.kinds == _B)
        places = np.concatenate([np.array(at, np.int64), begins])
        order = np.argsort(places, kind="stable")
        return _Annotations(
            positions=messages.positions(places[order]),
            texts=pa.array(texts + [None] * len(begins), pa.string()).take(pa.array(order)),
        )


class _Messages:
    """The messages of an entry as columns: what each is, and where it stands."""

    __slots__ = (
        "body", "contents", "kinds", "logical", "lsn", "ordinal", "prefixes", "starts", "time",
        "xid",
    )  # fmt: skip

    def __init__(self, entry: Entry) -> None:
        self.body = Body(entry.body)
        self.starts = entry.offsets.astype(np.int64)
        self.kinds = self.body.byte(self.starts[:-1])
        counts = _COUNTS[self.kinds]
        truncates = np.flatnonzero(self.kinds == _T)
        if len(truncates):
            counts[truncates] = self.number(truncates, 1, ">u4").astype(np.int64)
        self.logical = np.flatnonzero(self.kinds == _M)
        loose = self.logical[self.byte(self.logical, 1) == 0]
        counts[loose] = 0
        before = np.cumsum(counts) - counts
        if entry.kind is Kind.FRAGMENT:
            self._one_transaction(entry, before)
        else:
            self._transactions(entry, before)
        self.prefixes, self.contents = self._read_logical()
        if len(loose):
            # It stands at the last byte of its record; its LSN is the first byte behind it.
            lsn = self.number(loose, 2, ">u8").astype(np.uint64)
            self.lsn[loose] = np.maximum(lsn, np.uint64(1)) - np.uint64(1)
            self.ordinal[loose] = 0
            self.xid[loose] = 0

    def _one_transaction(self, entry: Entry, before: Indices) -> None:
        count = len(self.kinds)
        self.lsn = np.full(count, entry.first.lsn, np.uint64)
        self.xid = np.full(count, entry.xid, np.uint32)
        self.time = np.full(count, entry.last_time, np.int64)
        self.ordinal = before.astype(np.uint64) + np.uint64(entry.first.ordinal)

    def _transactions(self, entry: Entry, before: Indices) -> None:
        begins = np.flatnonzero(self.kinds == _B)
        # Behind the last transaction and before the first there are schemas and loose messages.
        number = np.cumsum(self.kinds == _B)
        lsns = self.number(begins, 1, ">u8").astype(np.uint64)
        times = self.number(begins, 9, ">i8").astype(np.int64)
        xids = self.number(begins, 17, ">u4").astype(np.uint32)
        self.lsn = np.concatenate([[np.uint64(entry.first.lsn)], lsns])[number]
        self.time = np.concatenate([[np.int64(entry.first_time)], times])[number]
        self.xid = np.concatenate([[np.uint32(0)], xids])[number]
        opened = np.concatenate([[0], before[begins]])[number]
        self.ordinal = (before - opened).astype(np.uint64)

    def _read_logical(self) -> tuple[pa.StringArray, pa.BinaryArray]:
        """Prefixes and contents of the logical messages."""
        if not len(self.logical):
            return pa.array([], pa.string()), pa.array([], pa.binary())
        start = self.starts[self.logical] + 10
        ends = self.starts[self.logical + 1]
        zeros = np.flatnonzero(self.body.bytes == 0)
        at = np.searchsorted(zeros, start)
        if (at >= len(zeros)).any():
            raise MalformedError("a logical message's prefix has no end")
        stop = zeros[at]
        content = stop + 5
        size = self.body.number(stop + 1, ">i4").astype(np.int64)
        if (content + size != ends).any() or (size < 0).any():
            raise MalformedError("a logical message's content does not fill its message")
        borders = np.stack([start, stop, content, ends], axis=1).astype(np.int32).reshape(-1)
        stretches = pa.Array.from_buffers(
            pa.binary(),
            len(borders) - 1,
            [None, pa.py_buffer(borders), pa.py_buffer(self.body.data)],
        )
        every = np.arange(0, len(borders), 4, dtype=np.int32)
        try:
            prefixes = stretches.take(pa.array(every)).cast(pa.string())
        except pa.ArrowInvalid as error:
            raise MalformedError("a logical message's prefix is not UTF-8") from error
        return prefixes, stretches.take(pa.array(every + 2))

    def logical_with(self, prefixes: frozenset[str]) -> list[int]:
        """Which of the logical messages inside transactions have one of these prefixes."""
        if not len(self.logical):
            return []
        found = pc.is_in(self.prefixes, pa.array(sorted(prefixes), pa.string()))
        inside = self.byte(self.logical, 1) != 0
        rows: list[int] = np.flatnonzero(found.to_numpy(zero_copy_only=False) & inside).tolist()
        return rows

    def logical_at(self, row: int) -> tuple[str, bytes]:
        """Prefix and content of one logical message."""
        return self.prefixes[row].as_py(), self.contents[row].as_py()

    def raw(self, index: int) -> bytes:
        return self.body.data[self.starts[index] : self.starts[index + 1]]

    def number(self, found: Indices, at: int, kind: str) -> NDArray[np.int64]:
        return self.body.number(self.starts[found] + at, kind)

    def byte(self, found: Indices, at: int) -> NDArray[np.uint8]:
        return self.body.byte(self.starts[found] + at)

    def positions(self, found: Indices) -> NDArray[np.void]:
        """Positions that sort; before the first message stands position zero."""
        known = np.maximum(found, 0)
        made = _sortable(self.lsn[known], self.ordinal[known])
        made[found < 0] = 0
        return made

    def group(self, op: Op, relation: Relation | None, found: Indices) -> Group:
        return Group(
            op=op,
            relation=relation,
            lsn=self.lsn[found],
            ordinal=self.ordinal[found],
            xid=self.xid[found],
            committed_at=self.time[found] + _EPOCH_MICROS,
        )


@dataclass(frozen=True, slots=True)
class _Annotations:
    """From which position on which text holds, in order."""

    positions: NDArray[np.void]
    texts: pa.StringArray

    def onto(self, group: Group) -> Group:
        rows = _sortable(group.lsn, group.ordinal)
        at = np.searchsorted(self.positions, rows, side="right") - 1
        texts = self.texts.take(pa.array(np.maximum(at, 0)))
        return group if texts.null_count == len(texts) else replace(group, annotations=texts)


_COUNTS = np.zeros(256, np.int64)
_COUNTS[[ord(letter) for letter in "IUDM"]] = 1
_SORTABLE = np.dtype([("lsn", np.uint64), ("ordinal", np.uint64)])


def _sortable(lsn: NDArray[np.uint64], ordinal: NDArray[np.uint64]) -> NDArray[np.void]:
    made = np.empty(len(lsn), _SORTABLE)
    made["lsn"], made["ordinal"] = lsn, ordinal
    return made


def _filled(after: Cells | None, before: Cells | None) -> Cells | None:
    """The new cells, with large values they do not repeat taken from an old row that has them."""
    assert after is not None
    assert before is not None
    if after.unchanged is None:
        return after
    known = after.unchanged & before.values.is_valid().to_numpy(zero_copy_only=False)
    if not known.any():
        return after
    left = after.unchanged & ~known
    values = pc.if_else(pa.array(known), before.values, after.values)
    return Cells(values, left if left.any() else None)


def _between(group: Group, after: Position | None, upto: Position | None) -> Group:
    """The part of a group in `(after, upto]`."""
    keep = np.ones(len(group), np.bool_)
    for bound, sign in ((after, 1), (upto, -1)):
        if bound is not None:
            lsn, ordinal = np.uint64(bound.lsn), np.uint64(bound.ordinal)
            same = group.lsn == lsn
            if sign > 0:
                keep &= (group.lsn > lsn) | (same & (group.ordinal > ordinal))
            else:
                keep &= (group.lsn < lsn) | (same & (group.ordinal <= ordinal))
    return group if keep.all() else group.take(np.flatnonzero(keep))


def _json_text(content: bytes) -> str | None:
    """Annotations as JSON text: as they are when they are JSON, as a JSON string otherwise."""
    if not content:
        return None
    text = content.decode("utf-8", "replace")
    try:
        json.loads(text)
    except ValueError:
        return json.dumps(text)
    return text
