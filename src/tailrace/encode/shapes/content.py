"""Logical messages in shapes: prefix and content."""

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
    """`prefix`, and `content` if it is UTF-8, else `content_base64`."""
    contents = facts.group.contents
    assert contents is not None
    fields = [Field("prefix", prefix(facts))]
    is_text = columns.utf8_mask(contents)
    if is_text.all():
        return [*fields, Field("content", facts.syntax.text(contents))]
    text = facts.syntax.text(where(is_text, contents, b""))
    return [
        *fields,
        Field("content", text, is_text),
        Field("content_base64", content_base64(facts), ~is_text),
    ]
