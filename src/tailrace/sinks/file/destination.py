"""Folders of the sink `file`: templates filled with escaped names, and the names of files in them.

A name keeps its letters, digits, `_` and `-`. Every other byte of its UTF-8 is written as `-xHH`,
and so is a `-` that would read as the start of such an escape, and a leading `_`: Spark and Hive
do not read folders that begin with it. No two names have the same folder.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from tailrace.sinks.destination import Template, escaped, fitted

if TYPE_CHECKING:
    from tailrace.change import Op
    from tailrace.position import Position

LONGEST = 700
"""Bytes of a folder. A key of S3 has at most 1,024, with the URL's own path and the file's name."""
LONGEST_PART = 255
"""Bytes between two slashes: the limit of most file systems."""
_ESCAPED = re.compile(r"-(?=x|\Z)|\A_|[^A-Za-z0-9_-]")
_FOLDER = re.compile(rb"[^/\\._\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*")


@lru_cache(maxsize=65536)
def token(name: str) -> str:
    """A name, escaped as a part of a folder.

    >>> token("order_items"), token("my-app"), token("../etc"), token("a-x2E"), token("")
    ('order_items', 'my-app', '-x2E-x2E-x2Fetc', 'a-x2Dx2E', '-x')
    >>> token("_tailrace")
    '-x5Ftailrace'
    """
    return escaped(name, _ESCAPED)


class FolderTemplate(Template):
    """A template such as `{schema}/{table}`.

    >>> from tailrace.change import Op
    >>> FolderTemplate("{schema}/{table}", database="shop").fill("public", "a/b", Op.INSERT)
    'public/a-x2Fb'
    """

    kind = "path"
    token = staticmethod(token)

    def fill(self, schema: str, table: str, op: Op) -> str:
        """The folder of changes of one table."""
        parts = super().fill(schema, table, op).split("/")
        return "/".join(fitted(part, LONGEST_PART) for part in parts)


def is_folder(destination: bytes) -> bool:
    r"""Whether a destination is a folder below the URL.

    A part begins neither with `.`, so that no path leaves the URL, nor with `_`: the sink keeps its
    records in such a folder, and readers skip it.

    >>> is_folder(b"public/orders"), is_folder(b"year=2026/a b"), is_folder("žluť".encode())
    (True, True, True)
    >>> is_folder(b"../up"), is_folder(b"a/../../up"), is_folder(b"/etc"), is_folder(b"")
    (False, False, False, False)
    >>> is_folder(b"a//b"), is_folder(b"a/"), is_folder(b"a\\..\\b"), is_folder(b"_tailrace/x")
    (False, False, False, False)
    """
    if len(destination) > LONGEST:
        return False
    try:
        destination.decode()
    except UnicodeDecodeError:
        return False
    parts = destination.split(b"/")
    return all(len(part) <= LONGEST_PART and _FOLDER.fullmatch(part) for part in parts)


def tag_of(owner: str, history: str) -> str:
    """What tells apart the files of two pipelines, and of two histories of one pipeline."""
    return hashlib.blake2s(f"{owner}\0{history}".encode(), digest_size=5).hexdigest()


def file_name(first: Position, last: Position, *, lane: int, tag: str, suffix: str) -> str:
    """The name of a file with the messages from one position to another. Names sort by position.

    >>> from tailrace.position import Position
    >>> file_name(Position.parse("0/1A.3"), Position.parse("0/2B.0"), lane=0, tag="t", suffix=".x")
    '000000000000001a-0000000000000003_000000000000002b-0000000000000000_0-t.x'
    """
    return f"{_sortable(first)}_{_sortable(last)}_{lane}-{tag}{suffix}"


def _sortable(position: Position) -> str:
    return f"{position.lsn:016x}-{position.ordinal:016x}"
