"""Passwords of users: scrypt, with its parameters beside the hash.

    scrypt$16384$8$5$SALT$HASH

The parameters are those that OWASP names for 16 MiB of memory per attempt.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading

_N, _R, _P = 1 << 14, 8, 5
_SALT_BYTES, _HASH_BYTES = 16, 32
_MAX_MEMORY = 64 << 20
_ONE_AT_A_TIME = threading.Lock()
"""Attempts in parallel would take 16 MiB each."""


def hashed(password: str) -> str:
    """What the settings file has for a password.

    >>> verify("correct horse", hashed("correct horse")), verify("wrong", hashed("correct horse"))
    (True, False)
    """
    salt = secrets.token_bytes(_SALT_BYTES)
    found = _scrypt(password, salt, _N, _R, _P)
    return "$".join(("scrypt", str(_N), str(_R), str(_P), _text(salt), _text(found)))


def verify(password: str, stored: str) -> bool:
    """Whether the password is the one of a hash."""
    n, r, p, salt, expected = parse(stored)
    return hmac.compare_digest(_scrypt(password, salt, n, r, p), expected)


def parse(stored: str) -> tuple[int, int, int, bytes, bytes]:
    """The parts of a hash. Raises ValueError."""
    kind, *parts = stored.split("$")
    if kind != "scrypt" or len(parts) != 5:
        raise ValueError("must be a hash as `tailrace user add` prints it")
    n, r, p = (int(part) if part.isdecimal() else 0 for part in parts[:3])
    if not (1 < n <= 1 << 16 and n & (n - 1) == 0 and r == _R and 1 <= p <= 16):
        raise ValueError("has scrypt parameters out of range")
    salt, expected = (base64.b64decode(part, validate=True) for part in parts[3:])
    if len(salt) < _SALT_BYTES or len(expected) != _HASH_BYTES:
        raise ValueError("must be a hash as `tailrace user add` prints it")
    return n, r, p, salt, expected


UNKNOWN_USER = "scrypt$16384$8$5$AAAAAAAAAAAAAAAAAAAAAA==$" + "A" * 43 + "="
"""Compared with the password of a user that does not exist: both answers take as long."""


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    with _ONE_AT_A_TIME:
        return hashlib.scrypt(
            password.encode(), salt=salt, n=n, r=r, p=p, maxmem=_MAX_MEMORY, dklen=_HASH_BYTES
        )


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
