"""hstore cells: PostgreSQL's text `"a"=>"1", "b"=>NULL` → objects, for a whole column at once.

Keys and values are always in quotes and NULL never is. So outside of strings an equals sign ends a
key, and a comma or the end of the text ends a value. The example has the spans `"a"`, `>"1"`,
`, "b"` and `>NULL`; a span without quotes is NULL, and the bytes inside quotes are the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrace.decode import columns
from tailrace.encode.pieces import Pieces, join
from tailrace.encode.syntaxes.quoting import quoting, spans

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.encode.syntaxes.syntax import Syntax


def cells(values: pa.BinaryArray, syntax: Syntax) -> Pieces:
    """Objects of strings and nulls."""
    data, starts = columns.content(values), columns.offsets(values)
    quoted = quoting(data)
    marks = ((data == ord("=")) | (data == ord(","))) & ~quoted.inside
    last = starts[1:][np.diff(starts) > 0]
    ends = np.sort(np.concatenate([np.flatnonzero(marks), last]))
    begins = np.append(0, ends[:-1])[: len(ends)]
    quotes = columns.starts_of(quoted.quotes)
    null = quotes[ends] == quotes[begins]
    texts = spans(data, quoted.content & quoted.inside, begins, ends, null)
    keys = np.append(data, 0)[ends] == ord("=")
    encoded = join(syntax.text(texts), null=syntax.null)
    inner = join([encoded, syntax.pair_marks(keys, np.isin(ends, last))])
    rows = np.append(0, np.searchsorted(ends, starts[1:], side="right"))
    members = columns.column(
        columns.content(inner), columns.offsets(inner)[rows], columns.validity(values)
    )
    counts = np.diff(columns.starts_of(keys)[rows])
    return syntax.mapping(members, counts)
