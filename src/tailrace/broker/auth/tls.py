"""TLS for the listener: its certificate, and an authority for those of clients."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The files; they may be replaced, and are read again then."""

    chain: Path
    key: Path
    client_authority: Path | None = None
    """Clients have to show a certificate of this authority, beside their login."""

    def context(self) -> ssl.SSLContext:
        """TLS 1.2 or later, with what the files hold now."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # A key that needs a password must not make a daemon ask for it.
            made.load_cert_chain(self.chain, self.key, password=_refuse)
            if self.client_authority is not None:
                made.load_verify_locations(self.client_authority)
                made.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:
            files = f"{self.chain}, {self.key}"
            if self.client_authority is not None:
                files += f", {self.client_authority}"
            raise ConfigError(
                f"the certificate cannot be used: {error}",
                hint=f"PEM files are wanted, the key without a password: {files}",
            ) from error
        return made


def _refuse() -> str:
    raise ValueError("the key needs a password")
