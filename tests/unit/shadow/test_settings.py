"""The options of `tailrace shadow`, and the settings file that the preset writes from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace import config
from tailrace.cli import app
from tailrace.errors import ConfigError
from tailrace.run.presets.shadow import DSN, FILE, config_file, sink_of, write
from tailrace.shadow.settings import DATA, ShadowSettings

FLAGS = [
    "--to", "--dsn", "--user", "--mechanism", "--tls", "--tls-ca", "--tls-certificate",
    "--tls-key", "--replicas", "--slot", "--publication", "--port", "--data",
]  # fmt: skip


def test_every_option_is_in_the_help() -> None:
    result = CliRunner().invoke(app, ["shadow", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    words = result.output.split()
    assert [flag for flag in FLAGS if flag not in words] == []
    assert "TAILRACE_SHADOW_DATA" in result.output


def test_the_destination_is_required() -> None:
    result = CliRunner().invoke(app, ["shadow"])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == "--to is missing: the Kafka cluster to copy to"


def test_a_command_before_the_first_start_names_the_fix(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["shadow", "verify", "--data", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == f"{tmp_path / FILE} does not exist"
    assert "tailrace shadow --to" in result.exception.hint


def test_defaults() -> None:
    settings = ShadowSettings(to="k:9092")
    assert settings.data == DATA
    assert settings.kafka == {
        "user": "", "mechanism": "SCRAM-SHA-512", "tls": False, "replicas": -1,
    }  # fmt: skip


def test_the_settings_file_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DSN, "host=db dbname=shop")
    monkeypatch.setenv("KAFKA_PASSWORD", "secret")
    settings = ShadowSettings(
        to="k1:9092,k2:9092", user="ann$", mechanism="PLAIN", tls_ca=Path("ca.pem"), replicas=3,
        slot="slot", publication="pub", port=0,
    )  # fmt: skip
    file = write(config_file(settings, tmp_path), tmp_path)
    assert file == tmp_path / FILE
    assert "secret" not in file.read_text()
    assert "host=db" not in file.read_text()
    loaded = config.load(file)
    assert (loaded.source.slot, loaded.source.publication) == ("slot", "pub")
    assert (loaded.http.port, loaded.log.path) == (0, tmp_path / "log")
    sink = sink_of(loaded)
    assert (sink.bootstrap, sink.user, sink.mechanism) == ("k1:9092,k2:9092", "ann$", "PLAIN")
    assert (sink.tls_ca, sink.replicas) == (Path("ca.pem").absolute(), 3)
    assert sink.dsn.get_secret_value() == "host=db dbname=shop"
    assert sink.password.get_secret_value() == "secret"


def test_another_settings_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="no pipeline shadow"):
        sink_of(config.Config())
