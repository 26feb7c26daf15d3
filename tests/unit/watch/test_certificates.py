"""Certificates that the settings name, as the openssl command makes them."""

from __future__ import annotations

import re
import subprocess
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
from pydantic import BaseModel

from tailrace.config import Config
from tailrace.sinks.registry import SINKS
from tailrace.watch.certificates import AUTHORITIES, OWN
from tailrace.watch.certificates import certificates as find

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tailrace.watch.facts import CertificateFact


def replication(folder: Path, cert: str = "server.crt", ca: str = "ca.crt") -> Config:
    tls = {"ca": str(folder / ca), "cert": str(folder / cert), "key": str(folder / "server.key")}
    return Config.model_validate({"replication": {"tls": tls}})


def found(config: Config) -> dict[str, CertificateFact]:
    return {each.key: each for each in find(config)}


def told(path: Path) -> float:
    """The end of a certificate, as openssl says."""
    shown = subprocess.run(
        ["openssl", "x509", "-in", path, "-noout", "-enddate", "-dateopt", "iso_8601"],
        capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    return datetime.fromisoformat(shown.strip().partition("=")[2]).timestamp()


def test_ends_are_those_that_openssl_shows(certificates: Path) -> None:
    facts = found(replication(certificates))
    assert set(facts) == {"replication.tls.ca", "replication.tls.cert"}
    assert facts["replication.tls.ca"].ends_at == told(certificates / "ca.crt")
    assert facts["replication.tls.cert"].ends_at == told(certificates / "server.crt")


def test_files_of_the_source_and_of_sinks(certificates: Path) -> None:
    sink = {
        "type": "http", "url": "https://a.example", "tls_ca": str(certificates / "ca.crt"),
        "tls_certificate": str(certificates / "client.crt"),
        "tls_key": str(certificates / "client.key"),
    }  # fmt: skip
    config = Config.model_validate(
        {
            "source": {"dsn": f"host=h sslrootcert={certificates / 'ca.crt'} password=s3cret"},
            "pipelines": {"orders": {"sink": sink}},
        }
    )
    assert set(found(config)) == {
        "source.dsn sslrootcert",
        "pipelines.orders.sink.tls_ca",
        "pipelines.orders.sink.tls_certificate",
    }


def test_the_files_of_the_endpoints_and_of_a_target_database(certificates: Path) -> None:
    tls = {
        "certificate": str(certificates / "server.crt"), "key": str(certificates / "server.key"),
    }  # fmt: skip
    dsn = f"host=h dbname=d sslrootcert={certificates / 'ca.crt'}"
    copy = {"encoding": "json", "sink": {"type": "postgres", "dsn": dsn}}
    facts = found(Config.model_validate({"http": {"tls": tls}, "pipelines": {"copy": copy}}))
    assert set(facts) == {"http.tls.certificate", "pipelines.copy.sink.dsn sslrootcert"}
    assert facts["http.tls.certificate"].ends_at == told(certificates / "server.crt")


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    """The models that a type consists of."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
        parts: Iterable[Any] = [field.annotation for field in kind.model_fields.values()]
    else:
        parts = get_args(kind)
    for part in parts:
        yield from _models(part)


def test_every_key_with_a_certificate_is_known() -> None:
    """GIVEN the settings of all sections and sinks THEN no file with a certificate is missed."""
    sinks = [SINKS.find(name).settings for name in SINKS.built_in]
    models = {model for kind in (Config, *sinks) for model in _models(kind)}
    named = {
        name
        for model in models
        for name, field in model.model_fields.items()
        if Path in (field.annotation, *get_args(field.annotation))
        and re.search(r"cert|crt|pem|(^|_)ca($|_)", name)
    }
    assert named == OWN | AUTHORITIES


def test_a_chain_ends_with_its_first_and_authorities_with_the_last(
    certificates: Path, tmp_path: Path
) -> None:
    long = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "20000", "-subj", "/CN=x")
    subprocess.run(
        ["openssl", *long, "-keyout", tmp_path / "k", "-out", tmp_path / "long.crt"],
        capture_output=True, check=True,
    )  # fmt: skip
    both = (tmp_path / "long.crt").read_text() + (certificates / "ca.crt").read_text()
    (tmp_path / "both.crt").write_text(both)
    facts = found(replication(tmp_path, cert="both.crt", ca="both.crt"))
    assert facts["replication.tls.cert"].ends_at == told(certificates / "ca.crt")
    # Beyond 2049, the date has another form.
    assert facts["replication.tls.ca"].ends_at == told(tmp_path / "long.crt")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "has no certificate"),
        ("-----BEGIN CERTIFICATE-----\nAAAA", "is not a PEM file of certificates"),
        (
            "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
            "is not a PEM file of certificates",
        ),
        (
            "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
            "is not a PEM file of certificates",
        ),
    ],
)
def test_files_that_are_no_certificates(tmp_path: Path, content: str | None, error: str) -> None:
    if content is not None:
        (tmp_path / "server.crt").write_text(content)
    assert found(replication(tmp_path))["replication.tls.cert"].error == error


def test_a_certificate_that_is_cut_off_anywhere(certificates: Path, tmp_path: Path) -> None:
    """GIVEN the first bytes of a certificate THEN there is an error, never an exception."""
    import base64  # noqa: PLC0415
    import ssl  # noqa: PLC0415

    der = ssl.PEM_cert_to_DER_cert((certificates / "ca.crt").read_text())
    for size in range(0, len(der), 7):
        body = base64.b64encode(der[:size]).decode()
        text = f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n"
        (tmp_path / "server.crt").write_text(text)
        assert found(replication(tmp_path))["replication.tls.cert"].error
