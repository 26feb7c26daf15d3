"""Logical messages inside shapes: their prefix and their content."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.decode import columns
from tailrace.encode.pieces import where
from tailrace.encode.syntaxes import binary
from tailrace.encode.syntaxes.syntax import Field

if TYPE_CHECKING:
    from tailrace.encode.facts import Facts
    from tailrace.encode.pieces import Pieces


def prefix(facts: Facts) -> Pieces:
    """The prefix as a string."""
    assert facts.group.prefixes is not None
    return facts.syntax.text(facts.group.prefixes.cast(pa.binary()))


def content_base64(facts: Facts) -> Pieces:
    """The content in base64."""
    assert facts.group.contents is not None
    return facts.syntax.plain(binary.base64(facts.group.contents))


def content_fields(facts: Facts) -> list[Field]:
    """`prefix`, and `content` where it is UTF-8 or `content_base64` where it is not."""
    contents = facts.group.contents
    assert contents is not None
    fields = [Field("prefix", prefix(facts))]
    readable = columns.utf8_mask(contents)
    if readable.all():
        return [*fields, Field("content", facts.syntax.text(contents))]
    shown = facts.syntax.text(where(readable, contents, b""))
    return [
        *fields,
        Field("content", shown, readable),
        Field("content_base64", content_base64(facts), ~readable),
    ]
