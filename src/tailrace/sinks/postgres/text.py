"""What PostgreSQL's types for text and JSON cannot hold. Found before anything is sent."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from tailrace.decode import columns

if TYPE_CHECKING:
    import pyarrow as pa

_ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def not_text(values: pa.BinaryArray) -> list[int]:
    r"""The rows that are not UTF-8, or contain a NUL character.

    >>> import pyarrow as pa
    >>> not_text(pa.array([b"a", b"\xff", None, b"a\0b"], pa.binary()))
    [1, 3]
    """
    bad = ~columns.utf8_mask(values)
    if (columns.content(values) == 0).any():
        found = pc.fill_null(pc.match_substring(values, b"\0"), False)
        bad |= found.to_numpy(zero_copy_only=False)
    return [int(row) for row in np.flatnonzero(bad)]


def with_escaped_nul(values: pa.BinaryArray) -> list[int]:
    r"""The rows of JSON with the character `\u0000`, which jsonb cannot hold.

    An escaped backslash may come before `u0000`.

    >>> import pyarrow as pa
    >>> with_escaped_nul(pa.array([rb'"\u0000"', rb'"\\u0000"', rb'"\\\u0000"'], pa.binary()))
    [0, 2]
    """
    found = pc.match_substring(values, rb"\u0000").to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(found).tolist()
    return [row for row in rows if _ESCAPED_NUL.search(values[row].as_py())]
