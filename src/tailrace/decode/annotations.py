"""Transaction annotations: JSON that a transaction attaches to the changes that follow it.

An application sets them with a transactional logical message of the prefix
`tailrace:annotations.set` (or Sequin's `sequin:transaction_annotations.set`) and clears them with
the matching `.clear`. They end with the transaction.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace.decode.messages import sortable
from tailrace.log.format.entry import Entry, Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.decode.group import Group
    from tailrace.decode.messages import Messages

_BEGIN = ord("B")
_SET = frozenset({"sequin:transaction_annotations.set", "tailrace:annotations.set"})
_CLEAR = frozenset({"sequin:transaction_annotations.clear", "tailrace:annotations.clear"})


@dataclass(frozen=True, slots=True)
class Annotations:
    """From which position on which text is in force, in order."""

    positions: NDArray[np.void]
    texts: pa.StringArray

    def onto(self, group: Group) -> Group:
        """The group with the annotations in force at each of its changes."""
        rows = sortable(group.lsn, group.ordinal)
        at = np.searchsorted(self.positions, rows, side="right") - 1
        texts = self.texts.take(pa.array(np.maximum(at, 0)))
        return group if texts.null_count == len(texts) else replace(group, annotations=texts)


class AnnotationReader:
    """Reads the annotations of one entry after another.

    Between entries it keeps the annotations of a transaction that continues in the next entry.
    """

    def __init__(self) -> None:
        self._open: tuple[int, str | None] = (0, None)
        """The commit LSN of the open transaction, and its annotations."""

    def read(self, messages: Messages, entry: Entry) -> Annotations | None:
        """The annotations in an entry; None if there are none.

        Every set, every clear and every BEGIN starts a new text; a BEGIN starts without one. For
        two transactions, of which the first sets {"by": 1} after its first row:

            message    B   I   set         I   C   B     I   C
            text       -       {"by": 1}           -
            in force   -   -   {"by": 1}           -     -
        """
        continues = entry.kind is Kind.FRAGMENT and not entry.begins
        carried = self._open[1] if continues and self._open[0] == entry.first.lsn else None
        at, texts = [-1], [carried]
        for row in messages.logical_with(_SET | _CLEAR):
            prefix, content = messages.logical_at(row)
            at.append(int(messages.logical[row]))
            texts.append(_json_text(content) if prefix in _SET else None)
        self._open = (entry.last.lsn, texts[-1] if not entry.ends else None)
        if not any(texts):
            return None
        begins = np.flatnonzero(messages.kinds == _BEGIN)
        places = np.concatenate([np.array(at, np.int64), begins])
        order = np.argsort(places, kind="stable")
        return Annotations(
            positions=messages.positions(places[order]),
            texts=pa.array(texts + [None] * len(begins), pa.string()).take(pa.array(order)),
        )


def _json_text(content: bytes) -> str | None:
    """Annotations as JSON text: unchanged if they are JSON, else as a JSON string."""
    if not content:
        return None
    text = content.decode("utf-8", "replace")
    try:
        json.loads(text)
    except ValueError:
        return json.dumps(text)
    return text
