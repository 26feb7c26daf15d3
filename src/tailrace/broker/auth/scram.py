"""SCRAM, the server's side (RFC 5802, RFC 7677): who logs in proves to know a password.

No password is kept, and none is sent: a server has keys made of it, which prove a client and cannot
be used to log in. Texts are taken as UTF-8 without further ado, as Kafka and its clients do. There
is no I/O here, and the server's nonce is the caller's.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Callable

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The mechanisms, and Python's names for their hashes."""
ITERATIONS = 4096
SALT_BYTES = 24
_FIRST = re.compile(
    rb"(?P<head>[ny],(?:a=(?P<on_behalf>[^,]*))?,)(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>[!-+\--~]+))"
)
_FINAL = re.compile(
    rb"(?P<bare>c=(?P<head>[A-Za-z0-9+/=]+),r=(?P<nonce>[!-+\--~]+)),p=(?P<proof>[A-Za-z0-9+/=]+)"
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Keys:
    """What is kept of a password, for one mechanism."""

    salt: bytes
    iterations: int
    stored: bytes
    server: bytes


def keys(mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS) -> Keys:
    """Made of a password; takes milliseconds, on purpose."""
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    client = hmac.digest(salted, b"Client Key", name)
    return Keys(
        salt=salt,
        iterations=iterations,
        stored=hashlib.new(name, client).digest(),
        server=hmac.digest(salted, b"Server Key", name),
    )


class Exchange:
    """One login: a first message and its answer, a final one and its answer."""

    def __init__(self, mechanism: str, nonce: str) -> None:
        self._hash = HASHES[mechanism]
        self._nonce = nonce.encode()
        self._head = self._said = self._theirs = b""
        self._keys: Keys | None = None
        self.name = ""
        """Who wants to log in, once the first message is there."""

    def first(self, message: bytes, keys_of: Callable[[str], Keys]) -> bytes:
        """The answer to the first message: a nonce, the salt, the number of rounds."""
        found = _FIRST.fullmatch(message)
        if found is None:
            raise MalformedError("a first message of SCRAM that is none")
        self.name = _name(found["name"])
        if found["on_behalf"] and _name(found["on_behalf"]) != self.name:
            raise MalformedError("a login on behalf of another user")
        self._keys = keys_of(self.name)
        self._head = found["head"]
        self._theirs = found["nonce"]
        self._nonce = self._theirs + self._nonce
        salt = base64.b64encode(self._keys.salt)
        answer = b"r=%b,s=%b,i=%d" % (self._nonce, salt, self._keys.iterations)
        self._said = b"%b,%b" % (found["bare"], answer)
        return answer

    def final(self, message: bytes) -> bytes | None:
        """The answer to the final message; None if the client does not know the password."""
        found = _FINAL.fullmatch(message)
        if found is None or self._keys is None:
            raise MalformedError("a final message of SCRAM that is none")
        said = b"%b,%b" % (self._said, found["bare"])
        signature = hmac.digest(self._keys.stored, said, self._hash)
        proof = _decoded(found["proof"])
        if len(proof) != len(signature):
            raise MalformedError("a proof of another size")
        client = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        proven = hmac.compare_digest(hashlib.new(self._hash, client).digest(), self._keys.stored)
        # librdkafka before 2.6.1, which kcat often has, puts its own part before it once more.
        nonces = (self._nonce, self._theirs + self._nonce)
        if not proven or _decoded(found["head"]) != self._head or found["nonce"] not in nonces:
            return None
        return b"v=" + base64.b64encode(hmac.digest(self._keys.server, said, self._hash))


def _name(text: bytes) -> str:
    if re.search(rb"=(?!2C|3D)", text):
        raise MalformedError("a user's name that is not escaped")
    try:
        return text.decode().replace("=2C", ",").replace("=3D", "=")
    except UnicodeDecodeError as error:
        raise MalformedError("a user's name that is no text") from error


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise MalformedError("what is not base64") from error
