"""Who we are to a NATS server: addresses, credentials and TLS, out of the settings.

The proof of an nkey is a signature under the server's nonce; `nkeys` makes it, and the seed is in
memory no longer than that.
"""

from __future__ import annotations

import base64
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import nkeys

from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tailrace.jetstream.settings import NatsServer

_PORT = 4222
_JWT = "NATS USER JWT"
_SEED = "USER NKEY SEED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One server to try. A user in the address counts for more than the settings'."""

    host: str
    port: int
    tls: bool
    user: str = ""
    password: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def addresses(url: str) -> tuple[Address, ...]:
    """Every address of a comma-separated list.

    >>> [str(address) for address in addresses("nats://a,tls://b:4443")]
    ['a:4222', 'b:4443']
    """
    found = tuple(_address(part.strip()) for part in url.split(",") if part.strip())
    if not found:
        raise ConfigError("the NATS sink has no address", hint="Set url: nats://host:4222")
    return found


def _address(text: str) -> Address:
    parts = urlsplit(text if "://" in text else f"nats://{text}")
    try:
        port = parts.port or _PORT
    except ValueError:
        raise ConfigError("the port of a NATS address is not a number") from None
    if parts.scheme not in {"nats", "tls"} or not parts.hostname:
        raise ConfigError(
            "a NATS address is not understood", hint="Write nats://host:4222 or tls://host:4222"
        )
    return Address(
        host=parts.hostname,
        port=port,
        tls=parts.scheme == "tls",
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
    )


def tls_context(settings: NatsServer) -> ssl.SSLContext:
    """Trust `tls_ca`, or else what the system trusts; show our certificate if we have one."""
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca)
        if settings.tls_certificate:
            context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the certificates of the NATS sink cannot be read: {error}",
            hint="Check tls_ca, tls_certificate and tls_key.",
        ) from error
    return context


def wants_tls(settings: NatsServer, address: Address) -> bool:
    """Whether to go on only under TLS, whatever the server asks for."""
    return address.tls or settings.tls_ca is not None or settings.tls_certificate is not None


def credentials(settings: NatsServer, address: Address, nonce: str) -> Mapping[str, Any]:
    """The fields of CONNECT that prove who we are."""
    token = settings.token.get_secret_value()
    if address.user:
        return _from_address(address)
    if settings.credentials:
        return _from_file(settings.credentials, nonce)
    if settings.nkey:
        public, signature = _sign(_read(settings.nkey).strip(), nonce)
        return {"nkey": public, "sig": signature}
    if token:
        return {"auth_token": token}
    if settings.user:
        return {"user": settings.user, "pass": settings.password.get_secret_value()}
    return {}


def _from_address(address: Address) -> Mapping[str, Any]:
    if address.password:
        return {"user": address.user, "pass": address.password}
    return {"auth_token": address.user}


def _from_file(path: Path, nonce: str) -> Mapping[str, Any]:
    text = _read(path)
    jwt, seed = _block(text, _JWT), _block(text, _SEED)
    if not jwt or not seed:
        raise ConfigError(f"{path} is not a NATS credentials file")
    return {"jwt": jwt, "sig": _sign(seed, nonce)[1]}


def _sign(seed: str, nonce: str) -> tuple[str, str]:
    try:
        pair = nkeys.from_seed(bytearray(seed.encode()))
        public = bytes(pair.public_key).decode()
        signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
        pair.wipe()
    except (nkeys.NkeysError, ValueError) as error:
        # Not chained: the cause may quote the seed.
        raise ConfigError(f"the NATS nkey seed is not valid ({type(error).__name__})") from None
    return public, signature


def _block(text: str, name: str) -> str:
    """What stands between `-----BEGIN name-----` and its end."""
    _, _, behind = text.partition(f"BEGIN {name}")
    lines = behind.splitlines()[1:]
    return next((line.strip() for line in lines if line.strip()), "")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ConfigError(f"cannot read {path}: {reason}") from None
