"""Messages as the text that services of AWS take.

SQS and SNS take the characters of XML 1.0, and no empty body. Anything else, such as MessagePack,
is sent as Base64, and the attribute `encoding` of the message says so:

    payload              body            encoding
    {"id": 1}            {"id": 1}       -
    \\x81\\xa2id\\x01       gaJpZAE=        base64
    (empty)              (line break)    base64

Attributes, groups and partition keys are text as well. What they cannot be is replaced by a digest,
so that equal keys stay equal.
"""

from __future__ import annotations

import base64
import hashlib
import re

_XML = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
_PRINTABLE = re.compile(r"[!-~]{1,128}")


def text_of(value: bytes) -> str | None:
    """The value as a text that is not empty; None if it cannot be one.

    >>> text_of(b"a"), text_of(b""), text_of(b"a\\0"), text_of(b"\\xff")
    ('a', None, None, None)
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if _XML.fullmatch(text) else None


def body_of(payload: bytes) -> tuple[str, str]:
    """The body of a message and its encoding.

    >>> body_of(b'{"id": 1}'), body_of(b"\\x81\\xa2id\\x01"), body_of(b"")
    (('{"id": 1}', ''), ('gaJpZAE=', 'base64'), ('\\n', 'base64'))
    """
    text = text_of(payload)
    if text is not None:
        return text, ""
    return base64.b64encode(payload).decode() or "\n", "base64"


def id_of(value: bytes) -> str:
    """The value itself if it is at most 128 printable characters of ASCII, otherwise a digest.

    >>> id_of(b"16b3748-orders-insert-0"), id_of("é".encode())
    ('16b3748-orders-insert-0', '475c85d7975f368873aa35ff97d88a3c')
    """
    text = value.decode("latin-1")
    if _PRINTABLE.fullmatch(text):
        return text
    return hashlib.blake2s(value, digest_size=16).hexdigest()


def group_of(key: bytes | None, scope: int) -> str:
    """The group of a message: its key, or the table of a message without one.

    >>> group_of(b"42", 7), group_of(None, 7)
    ('42', 'table-0000000000000007')
    """
    return f"table-{scope:016x}" if key is None else id_of(key)
