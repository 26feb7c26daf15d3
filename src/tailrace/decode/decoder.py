"""The decoder of pipelines: entries to groups of changes.

Reads all messages of an entry together: kinds, transactions, ordinals and relations as columns,
then all rows of a relation and operation at once. Between entries it keeps the relations in force,
as the stream stated them, and the annotations of a transaction that continues in the next entry.
`tailrace.log.changes.Decoder` does the same one message at a time; tests compare the two.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Op
from tailrace.decode.annotations import AnnotationReader
from tailrace.decode.group import Cells, Group, Image
from tailrace.decode.messages import Messages
from tailrace.decode.rows import read_rows
from tailrace.errors import MalformedError
from tailrace.log.format.entry import Kind
from tailrace.schema import Relation, TypeName
from tailrace.wire import pgoutput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tailrace.log.format.entry import Entry
    from tailrace.position import Position

    Indices = NDArray[np.int64]

_T, _R, _Y = (ord(letter) for letter in "TRY")
_K, _O, _NEW = ord("K"), ord("O"), ord("N")
_ROW_OPS = ((ord("I"), Op.INSERT), (ord("U"), Op.UPDATE), (ord("D"), Op.DELETE))
_FORMS = {Op.INSERT: (_NEW,), Op.UPDATE: (_NEW, _K, _O), Op.DELETE: (_K, _O)}
"""The letters of the first row image, per operation."""


class Decoder:
    """Decodes entries into groups.

    `wanted` selects relations, `messages` selects prefixes of logical messages. Changes that are
    not selected still count in the ordinals of the others.
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
        self._annotations = AnnotationReader()

    def decode(
        self, entry: Entry, after: Position | None = None, upto: Position | None = None
    ) -> list[Group]:
        """The changes of an entry in `(after, upto]`, as groups in any order."""
        messages = Messages(entry)
        if entry.kind is Kind.SCHEMA:
            # It has no changes, and a transaction may continue after it.
            list(self._runs(messages))
            return []
        annotations = self._annotations.read(messages, entry)
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

    def _runs(self, messages: Messages) -> Iterator[slice]:
        """Ranges of messages that use the same relations. Learns the schemas between them.

        A new range starts only where a known relation or type changes, not where one is new or
        repeated. R1' is a changed R1:

            messages   R1 B I C  R1 B I C  R2 B I C  R1' B I C
            ranges     0 ............................. 12 ....
        """
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
            raise MalformedError(f"a change of unknown relation {oid}") from None

    def _rows(self, messages: Messages, run: slice) -> Iterator[Group]:
        """The rows of a range: one group per operation, relation and form of the old row."""
        kinds = messages.kinds[run]
        for letter, op in _ROW_OPS:
            rows = np.flatnonzero(kinds == letter) + run.start
            if not len(rows):
                continue
            oids = messages.number(rows, 1, ">u4")
            first = int(oids[0])
            same = bool((oids == first).all())
            for oid in [first] if same else np.unique(oids).tolist():
                relation = self._relation(int(oid))
                if self._wanted(relation):
                    chosen = rows if same else rows[oids == oid]
                    yield from self._of_relation(messages, op, relation, chosen)

    def _of_relation(
        self, messages: Messages, op: Op, relation: Relation, rows: Indices
    ) -> Iterator[Group]:
        forms = messages.byte(rows, 5)
        left = len(rows)
        for form in _FORMS[op]:
            chosen = rows if (forms == form).all() else rows[forms == form]
            if len(chosen):
                left -= len(chosen)
                yield self._images(messages, op, relation, chosen, form)
        if left:
            raise MalformedError(
                f"{op.name} of {relation.qualified_name}: a row image of unknown kind"
            )

    def _images(
        self, messages: Messages, op: Op, relation: Relation, rows: Indices, form: int
    ) -> Group:
        """The group of rows of one form. After kind and oid (5 bytes) a message continues with:

        INSERT   N new                      no old row
        UPDATE   N new                      the key did not change
        UPDATE   K old key   N new          the key changed
        UPDATE   O old row   N new          REPLICA IDENTITY FULL
        DELETE   K old key, or O old row
        """
        what, columns = relation.qualified_name, len(relation.columns)
        body, ends = messages.body, messages.starts[rows + 1]
        pos = messages.starts[rows] + 6
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
            raise MalformedError(f"{op.name} of {what} has bytes after its last column")
        if before is not None and after is not None:
            after = tuple(map(_filled, after, before))
        if before is not None and form == _K:
            before = tuple(
                cells if column.key else None
                for cells, column in zip(before, relation.columns, strict=True)
            )
        return replace(
            messages.group(op, relation, rows),
            types=self._types_of(relation),
            before=before,
            after=after,
        )

    def _types_of(self, relation: Relation) -> dict[int, TypeName]:
        oids = {column.type_oid for column in relation.columns}
        return {oid: self.types[oid] for oid in oids if oid in self.types}

    def _truncates(self, messages: Messages, run: slice) -> Iterator[Group]:
        """One group per table: a TRUNCATE is one change for each table that it names."""
        for index in (np.flatnonzero(messages.kinds[run] == _T) + run.start).tolist():
            message = pgoutput.parse(messages.raw(index))
            assert isinstance(message, pgoutput.Truncate)
            for number, oid in enumerate(message.oids):
                relation = self._relation(oid)
                if self._wanted(relation):
                    group = messages.group(Op.TRUNCATE, relation, np.array([index]))
                    yield replace(group, ordinal=group.ordinal + np.uint64(number))

    def _logical(self, messages: Messages) -> Iterator[Group]:
        if not len(messages.logical):
            return
        distinct = pc.unique(messages.prefixes).to_pylist()
        chosen = [prefix for prefix in distinct if self._messages(prefix)]
        if not chosen:
            return
        matches = pc.is_in(messages.prefixes, pa.array(chosen, pa.string()))
        at = np.flatnonzero(matches.to_numpy(zero_copy_only=False))
        yield replace(
            messages.group(Op.MESSAGE, None, messages.logical[at]),
            prefixes=messages.prefixes.take(pa.array(at)),
            contents=messages.contents.take(pa.array(at)),
        )


def _filled(after: Cells | None, before: Cells | None) -> Cells | None:
    """The new cells, with unchanged TOAST values taken from the old row where it has them."""
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
