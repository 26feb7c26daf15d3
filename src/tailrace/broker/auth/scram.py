"""SCRAM, the server's side (RFC 5802, RFC 7677): a client proves that it knows a password.

The password is neither stored nor sent. The server stores keys derived from it, which verify a
client but cannot be used to log in. Texts are UTF-8 without SASLprep, as in Kafka and its clients.
No I/O here; the server's nonce is an argument.
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
"""The mechanisms, and the names of their hashes in `hashlib`."""
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
    """The keys of one password for one mechanism."""

    salt: bytes
    iterations: int
    stored: bytes
    server: bytes


def keys(mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS) -> Keys:
    """Derive the keys of a password. Takes milliseconds on purpose, against guessing."""
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
    """One login: the first and the final message of the client, each with its response."""

    def __init__(self, mechanism: str, nonce: str) -> None:
        self._hash = HASHES[mechanism]
        self._nonce = nonce.encode()
        self._gs2_header = self._transcript = self._client_nonce = b""
        self._keys: Keys | None = None
        self.name = ""
        """The user name, after the first message."""

    def first(self, message: bytes, keys_of: Callable[[str], Keys]) -> bytes:
        """The response to the first message: nonce, salt, number of iterations."""
        match = _FIRST.fullmatch(message)
        if match is None:
            raise MalformedError("invalid first SCRAM message")
        self.name = _name(match["name"])
        if match["on_behalf"] and _name(match["on_behalf"]) != self.name:
            raise MalformedError("SCRAM login on behalf of another user")
        self._keys = keys_of(self.name)
        self._gs2_header = match["head"]
        self._client_nonce = match["nonce"]
        self._nonce = self._client_nonce + self._nonce
        salt = base64.b64encode(self._keys.salt)
        answer = b"r=%b,s=%b,i=%d" % (self._nonce, salt, self._keys.iterations)
        self._transcript = b"%b,%b" % (match["bare"], answer)
        return answer

    def final(self, message: bytes) -> bytes | None:
        """The response to the final message; None if the proof is wrong."""
        match = _FINAL.fullmatch(message)
        if match is None or self._keys is None:
            raise MalformedError("invalid final SCRAM message")
        transcript = b"%b,%b" % (self._transcript, match["bare"])
        signature = hmac.digest(self._keys.stored, transcript, self._hash)
        proof = _decoded(match["proof"])
        if len(proof) != len(signature):
            raise MalformedError("SCRAM proof has the wrong size")
        client = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        proven = hmac.compare_digest(hashlib.new(self._hash, client).digest(), self._keys.stored)
        # librdkafka before 2.6.1, which many kcat packages use, sends its own nonce twice.
        nonces = (self._nonce, self._client_nonce + self._nonce)
        if (
            not proven
            or _decoded(match["head"]) != self._gs2_header
            or match["nonce"] not in nonces
        ):
            return None
        return b"v=" + base64.b64encode(hmac.digest(self._keys.server, transcript, self._hash))


def _name(text: bytes) -> str:
    if re.search(rb"=(?!2C|3D)", text):
        raise MalformedError("user name in a SCRAM message is not escaped")
    try:
        return text.decode().replace("=2C", ",").replace("=3D", "=")
    except UnicodeDecodeError as error:
        raise MalformedError("user name in a SCRAM message is not UTF-8") from error


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise MalformedError("invalid base64 in a SCRAM message") from error
