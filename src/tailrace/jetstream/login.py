"""The login to a NATS server: addresses, credentials and TLS, from the settings.

`Login` is the one mapping for both kinds of connection: the blocking one sends the fields of
`connect_fields` itself, nats-py gets the options of `client_options`. Consumers build a `Login`
from plain values; nothing here needs pydantic at run time.

An nkey proves itself by a signature of the server's nonce. `nkeys` computes it, and the seed is in
memory no longer than that.
"""

from __future__ import annotations

import base64
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.jetstream.settings import NatsServer

_PORT = 4222
_JWT = "NATS USER JWT"
_SEED = "USER NKEY SEED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One server to try. A user in the address takes precedence over the settings."""

    host: str
    port: int
    tls: bool
    user: str = field(default="", repr=False)
    """A user, or a token if there is no password."""
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def connect_fields(self) -> Mapping[str, Any]:
        """The login in the address: user and password, or a token alone."""
        if self.password:
            return {"user": self.user, "pass": self.password}
        return {"auth_token": self.user}


def addresses(url: str) -> tuple[Address, ...]:
    """Every address of a comma-separated list.

    >>> [str(address) for address in addresses("nats://a,tls://b:4443")]
    ['a:4222', 'b:4443']
    """
    parsed = tuple(_address(part) for part in _split(url))
    if not parsed:
        raise ConfigError("the NATS url is empty", hint="Set url: nats://host:4222")
    return parsed


def _split(url: str) -> list[str]:
    return [part.strip() for part in url.split(",") if part.strip()]


def _address(text: str) -> Address:
    # Neither message quotes the address: it may hold a password.
    parts = urlsplit(text if "://" in text else f"nats://{text}")
    try:
        port = parts.port or _PORT
    except ValueError:
        raise ConfigError(
            "the port of a NATS address is not a number", hint="Write nats://host:4222"
        ) from None
    if parts.scheme not in {"nats", "tls"} or not parts.hostname:
        raise ConfigError(
            "a NATS address is invalid", hint="Write nats://host:4222 or tls://host:4222"
        )
    return Address(
        host=parts.hostname,
        port=port,
        tls=parts.scheme == "tls",
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How to log in. Of several credentials one is used: the address's own user, then the
    credentials file, the nkey, the token, the user."""

    url: str = field(repr=False)
    """The addresses; they may include passwords."""
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    credentials: Path | None = None
    nkey: Path | None = None
    tls_ca: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls: ssl.SSLContext | None = None
    """Takes the place of the three files."""

    @classmethod
    def of(cls, settings: NatsServer) -> Login:
        """The login that settings describe."""
        return cls(
            url=settings.url.get_secret_value(),
            user=settings.user,
            password=settings.password.get_secret_value(),
            token=settings.token.get_secret_value(),
            credentials=settings.credentials,
            nkey=settings.nkey,
            tls_ca=settings.tls_ca,
            tls_certificate=settings.tls_certificate,
            tls_key=settings.tls_key,
        )

    @property
    def tls_configured(self) -> bool:
        """Whether the connection must use TLS, even if the server does not require it."""
        return bool(self.tls or self.tls_ca or self.tls_certificate)

    def tls_context(self) -> ssl.SSLContext:
        """Trust `tls_ca`, by default the system's authorities; present the client certificate."""
        if self.tls is not None:
            return self.tls
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_certificate:
                context.load_cert_chain(self.tls_certificate, self.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"cannot read the certificates for NATS: {error}",
                hint="Check tls_ca, tls_certificate and tls_key.",
            ) from error
        return context

    def connect_fields(self, address: Address, nonce: str) -> Mapping[str, Any]:
        """The fields of the protocol's CONNECT that log in to a server."""
        if address.user:
            return address.connect_fields()
        if self.credentials:
            return _signed_jwt(self.credentials, nonce)
        if self.nkey:
            public, signature = _sign(_read(self.nkey).strip(), nonce)
            return {"nkey": public, "sig": signature}
        if self.token:
            return {"auth_token": self.token}
        if self.user:
            return {"user": self.user, "pass": self.password}
        return {}

    def client_options(self) -> dict[str, Any]:
        """The options of `nats.connect` that say where to connect and log in."""
        options: dict[str, Any] = {"servers": _split(self.url)}
        if self.tls_configured:
            options["tls"] = self.tls_context()
        # nats-py prefers its options to a user in the address; `connect_fields` does not.
        if all(urlsplit(server).username for server in options["servers"]):
            return options
        if self.credentials:
            options["user_credentials"] = str(self.credentials)
        elif self.nkey:
            options["nkeys_seed"] = str(self.nkey)
        elif self.token:
            options["token"] = self.token
        elif self.user:
            options |= {"user": self.user, "password": self.password}
        return options


def client_options(
    url: str,
    *,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    credentials: str | Path | None = None,
    tls: ssl.SSLContext | None = None,
) -> dict[str, Any]:
    """The options of `nats.connect` for a client that has plain values instead of settings."""
    login = Login(
        url=url,
        user=user or "",
        password=password or "",
        token=token or "",
        credentials=Path(credentials) if credentials else None,
        tls=tls,
    )
    return login.client_options()


def _signed_jwt(path: Path, nonce: str) -> Mapping[str, Any]:
    text = _read(path)
    jwt, seed = _block(text, _JWT), _block(text, _SEED)
    if not jwt or not seed:
        raise ConfigError(
            f"{path} is not a NATS credentials file",
            hint="Create one: nsc generate creds --name USER",
        )
    return {"jwt": jwt, "sig": _sign(seed, nonce)[1]}


def _sign(seed: str, nonce: str) -> tuple[str, str]:
    """The public key of a seed, and its signature of the nonce."""
    import nkeys  # noqa: PLC0415 - it loads libsodium, which no other login needs

    try:
        pair = nkeys.from_seed(bytearray(seed.encode()))
        public = bytes(pair.public_key).decode()
        signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
        pair.wipe()
    except (nkeys.NkeysError, ValueError) as error:
        # Not chained: the cause may quote the seed.
        raise ConfigError(f"the NATS nkey seed is invalid ({type(error).__name__})") from None
    return public, signature


def _block(text: str, name: str) -> str:
    """The first line between `-----BEGIN name-----` and its end."""
    _, _, after = text.partition(f"BEGIN {name}")
    lines = after.splitlines()[1:]
    return next((line.strip() for line in lines if line.strip()), "")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ConfigError(f"cannot read {path}: {reason}") from None
