"""Fixtures for TLS: certificates as the openssl command makes them."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_NEW_KEY = ("-newkey", "rsa:2048", "-nodes")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities, `ca` and `other`; signed by the first, `server` for localhost by name and
    number, `named` by its name alone, and `client` with the common name tail."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command makes the certificates")
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("ca", "other"):
        _openssl(
            folder, "req", "-x509", *_NEW_KEY, "-days", "2", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.crt",
        )  # fmt: skip
    signed(folder, "server")
    signed(folder, "named", names="DNS:localhost")
    signed(folder, "client", common="tail")
    return folder


def signed(
    folder: Path, name: str, *, common: str = "localhost", names: str = "DNS:localhost,IP:127.0.0.1"
) -> None:
    """A new key, a certificate for it, and both in one file."""
    files = ("-keyout", f"{name}.key", "-out", f"{name}.csr")
    _openssl(folder, "req", *_NEW_KEY, "-subj", f"/CN={common}", *files)
    (folder / "names.cnf").write_text(f"subjectAltName={names}\n")
    _openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
        "-CAcreateserial", "-days", "2", "-extfile", "names.cnf", "-out", f"{name}.crt",
    )  # fmt: skip
    both = [(folder / f"{name}.{end}").read_text() for end in ("key", "crt")]
    (folder / f"{name}.pem").write_text("".join(both))


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
