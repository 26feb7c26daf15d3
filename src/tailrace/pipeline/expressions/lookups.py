"""Lookups: rows of queries at the source that expressions may read, as `NAME.column`.

`key` is a column of the changed table. The query takes the values of that column as `$1` and
returns a row for each, whose first column is the value again. Its columns are known once PostgreSQL
has described the query.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tailrace.schema import Column

if TYPE_CHECKING:
    from tailrace.pipeline.expressions.reference import Reference
    from tailrace.pipeline.expressions.syntax import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """One lookup of a pipeline."""

    name: str
    query: str
    key: str
    cache_s: float
    cache_rows: int
    timeout_s: float
    columns: tuple[Column, ...] = ()
    first: int = 0
    """The place of its first column among those of all lookups (`looked_up` of the frame)."""

    def column(self, text: Text, reference: Reference) -> int:  # noqa: RET503 - refuse() raises
        """The column that an expression names; refuses an unknown one."""
        names = [column.name for column in self.columns]
        if reference.name in names:
            return names.index(reference.name)
        folded = [name.lower() for name in names]
        if not reference.exact and reference.name.lower() in folded:
            return folded.index(reference.name.lower())
        close = difflib.get_close_matches(reference.name, names, n=1)
        known = f"did you mean {close[0]}?" if close else f"it has {', '.join(names)}"
        text.refuse(
            reference.offset, f"the lookup {self.name} has no column {reference.name}, {known}"
        )


Lookups = Mapping[str, Lookup]
"""By name."""


def dump(lookups: Sequence[Lookup]) -> str:
    """Lookups as text, for the settings of tasks."""
    return json.dumps([asdict(lookup) for lookup in lookups])


def load(text: str) -> tuple[Lookup, ...]:
    """Lookups from text."""
    found = json.loads(text) if text else []
    return tuple(
        Lookup(**{**each, "columns": tuple(Column(**column) for column in each["columns"])})
        for each in found
    )
