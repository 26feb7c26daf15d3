"""When do the certificates end that the settings name?

Python's `ssl` does not say when a certificate ends that is not an authority's, and a library for
one date would take more memory than the rest of the watchdog. So `_end_of` walks the few fields of
DER up to the validity (RFC 5280, section 4.1).
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, SecretStr

from tailrace.postgres.connection import certificate_files
from tailrace.watch.facts import CertificateFact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.config import Config

OWN = frozenset({"cert", "certificate", "tls_certificate"})
AUTHORITIES = frozenset({"ca", "tls_ca"})
"""The keys of settings that name files with certificates."""
_LIBPQ = {"sslcert": False, "sslrootcert": True}
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_MAX_BYTES = 4 << 20
_SEQUENCE, _VERSION = 0x30, 0xA0
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18


def certificates(config: Config) -> tuple[CertificateFact, ...]:
    """The certificates that the settings name, each with its end."""
    return tuple(_fact(key, path, authority) for key, path, authority in _files(config))


def _files(config: Config) -> Iterator[tuple[str, Path, bool]]:
    """Key, file, and whether it holds authorities."""
    yield from _named("", config)


def _named(prefix: str, value: object) -> Iterator[tuple[str, Path, bool]]:
    if isinstance(value, BaseModel):
        value = dict(value)
    if not isinstance(value, dict):
        return
    for name, each in value.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if name == "dsn" and isinstance(each, SecretStr):
            for option, path in certificate_files(each.get_secret_value()).items():
                yield f"{key} {option}", path, _LIBPQ[option]
        elif name in OWN | AUTHORITIES and each and isinstance(each, (str, Path)):
            yield key, Path(each), name in AUTHORITIES
        else:
            yield from _named(key, each)


def _fact(key: str, path: Path, authority: bool) -> CertificateFact:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode("ascii", errors="replace")
        ends = [_end_of(der) for der in _ders(text)]
    except OSError as error:
        return CertificateFact(key=key, error=f"cannot be read: {error.strerror}")
    except (ValueError, IndexError):
        return CertificateFact(key=key, error="is not a PEM file of certificates")
    if not ends:
        return CertificateFact(key=key, error="has no certificate")
    # One of several authorities may have expired; a chain is as good as its weakest link.
    return CertificateFact(key=key, ends_at=max(ends) if authority else min(ends))


def _ders(text: str) -> Iterator[bytes]:
    for part in text.split(_BEGIN)[1:]:
        body, end, _ = part.partition(_END)
        if not end:
            raise ValueError("a certificate has no end")
        yield ssl.PEM_cert_to_DER_cert(f"{_BEGIN}{body}{_END}")


def _end_of(der: bytes) -> float:
    """The end of a certificate's validity, in seconds since 1970."""
    certificate = _content(der, _SEQUENCE)
    fields = list(_elements(_content(certificate, _SEQUENCE)))
    # version (optional), serial number, algorithm, issuer, validity
    validity = fields[4 if fields[0][0] == _VERSION else 3]
    _, (kind, until) = _elements(validity[1])
    text = until.decode("ascii")
    if kind == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    elif kind != _GENERALIZED_TIME:
        raise ValueError("a validity ends with a time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _content(data: bytes, kind: int) -> bytes:
    for found, content in _elements(data):
        if found == kind:
            return content
        break
    raise ValueError(f"an element {kind:#x} is missing")


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The elements of DER: kind and content."""
    at = 0
    while at < len(data):
        kind, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[at : at + count], "big")
            at += count
        if at + size > len(data):
            raise ValueError("an element is longer than what holds it")
        yield kind, data[at : at + size]
        at += size
