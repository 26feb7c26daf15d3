from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from tailrace.broker.limits import Limits
from tailrace.broker.settings import BrokerSettings, parse_address
from tailrace.cli import app
from tailrace.errors import ConfigError


def test_defaults_are_those_of_the_limits() -> None:
    assert BrokerSettings().limits == Limits()


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9092", ("127.0.0.1", 9092)), ("[::1]:1", ("::1", 1)), ("db:0", ("db", 0))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address
    assert BrokerSettings(listen=text).address == address
    assert BrokerSettings(advertise=text).advertised == address


@pytest.mark.parametrize("text", ["nowhere", ":9092", "db:", "db:x", "127.0.0.1:99999"])
def test_invalid_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="must be host:port"):
        BrokerSettings(listen=text)
    with pytest.raises(ValidationError, match="must be host:port"):
        BrokerSettings(advertise=text)


@pytest.mark.parametrize(
    ("listen", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("db:1", False),
    ],
)
def test_loopback(listen: str, loopback: bool) -> None:
    assert BrokerSettings(listen=listen).loopback is loopback


def test_a_certificate_needs_its_key() -> None:
    file = Path("file.pem")
    for given in ({"tls_cert": file}, {"tls_key": file}, {"tls_client_ca": file}):
        with pytest.raises(ValidationError, match="both --tls-cert and --tls-key"):
            BrokerSettings.model_validate(given)
    assert BrokerSettings(tls_cert=file, tls_key=file).tls_client_ca is None


FLAGS = [
    "--listen", "--advertise", "--tls-cert", "--tls-key", "--tls-client-ca", "--insecure", "--init",
    "--auto-create", "--no-auto-create", "--partitions", "--max-message-bytes", "--tail-bytes",
    "--connections", "--retention-check", "--producer-id-expiration", "--offsets-retention",
    "--max-connections", "--request-memory", "--idle-timeout", "--port",
    "--log-format", "--verbose", "--config", "--dsn",
]  # fmt: skip


def test_every_option_is_in_the_help() -> None:
    result = CliRunner().invoke(app, ["broker", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    words = result.output.replace(",", " ").replace("/", " ").split()
    assert [flag for flag in FLAGS if flag not in words] == []
    assert "TAILRACE_BROKER_LISTEN" in result.output
    assert "TAILRACE_BROKER_ADVERTISE" in result.output


def test_an_invalid_option_is_named() -> None:
    result = CliRunner().invoke(app, ["broker", "--listen", "nowhere"])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == (
        "--listen (TAILRACE_BROKER_LISTEN): must be host:port such as 127.0.0.1:9092, got 'nowhere'"
    )


def test_a_broker_listens_on_loopback_and_without_http_by_default() -> None:
    assert BrokerSettings().address == ("127.0.0.1", 9092)
    assert BrokerSettings().loopback
    assert BrokerSettings().port == 0
