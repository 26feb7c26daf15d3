"""TLS of the listener: its certificate, and the authority of client certificates."""

from __future__ import annotations

import ssl
from asyncio import sslproto
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


_BUFFER_BYTES = 16 << 10
"""As large as a record of TLS."""


def limit_buffers() -> None:
    """Let every TLS connection of this process have a buffer of 16 KB.

    asyncio allocates 256 KB per connection, for as long as it is open. Measured with 10,000 idle
    clients: 3.0 GB. There is no parameter for it.
    """
    sslproto.SSLProtocol.max_size = _BUFFER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The files of a certificate. They may be replaced while the broker runs."""

    chain: Path
    key: Path
    client_authority: Path | None = None
    """Clients must present a certificate of this authority, in addition to their login."""

    def context(self) -> ssl.SSLContext:
        """TLS 1.2 or later, with the present content of the files."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # OpenSSL would prompt for the password of a key on the terminal.
            context.load_cert_chain(self.chain, self.key, password=_refuse)
            if self.client_authority is not None:
                context.load_verify_locations(self.client_authority)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:
            files = f"{self.chain}, {self.key}"
            if self.client_authority is not None:
                files += f", {self.client_authority}"
            raise ConfigError(
                f"cannot load the TLS certificate: {error}",
                hint=f"Use PEM files, and a key without a password: {files}",
            ) from error
        return context


def _refuse() -> str:
    raise ValueError("the private key is encrypted")
