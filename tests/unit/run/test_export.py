"""Settings that run, written as a file: read back, they are equal."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from pydantic import ValidationError

from docs.pages import ROOT, pages
from tailrace import config
from tailrace.config.document import defaults, document
from tailrace.run.export import export
from tailrace.run.loaded import Digests, loaded_now
from tests.unit.run.test_plan import BASE

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.config import Config
    from tailrace.run.export import Exported

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.S | re.M)


def _examples() -> dict[str, dict[str, Any]]:
    """All settings files in the documentation and in `deploy`, with words for their variables."""
    texts = {"deploy/tailrace.yml": (ROOT / "deploy/tailrace.yml").read_text()}
    for page in pages():
        for number, block in enumerate(_BLOCK.findall((ROOT / page.path).read_text())):
            texts[f"{page.path}-{number}"] = block
    found = {"all": BASE}
    for name, text in texts.items():
        try:
            values = yaml.safe_load(re.sub(r"\$\{[^}]*\}", "0123456789abcdef", text))
            config.Config.model_validate(values)
        except (ValidationError, yaml.YAMLError, TypeError):
            continue  # A part of a file, or of another program.
        found[name] = values
    return found


EXAMPLES = _examples()


def test_examples_are_found() -> None:
    assert len(EXAMPLES) > 10
    kinds = {
        pipeline["sink"]["type"]
        for each in EXAMPLES.values()
        for pipeline in (each.get("pipelines") or {}).values()
    }
    assert {"nats", "http", "kafka"} <= kinds


def written(loaded: Config, folder: Path) -> Exported:
    running = loaded_now(
        loaded, Digests.create(folder), file=folder / "tailrace.yml", at=NOW, overridden=()
    )
    return export(running)


def secrets_of(loaded: Config) -> dict[tuple[str, ...], str]:
    found: dict[tuple[str, ...], str] = {}

    def note(path: tuple[str, ...], text: str) -> str:
        found[path] = text
        return ""

    document(loaded, note)
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_read_back(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN an example WHEN it is exported, and read back with its secrets in the variables that
    the export names THEN the settings are equal, secrets included, and the export has no secret."""
    (tmp_path / "tailrace.yml").write_text(yaml.safe_dump(EXAMPLES[name]))
    loaded = config.absolute(config.load(tmp_path / "tailrace.yml"))
    exported = written(loaded, tmp_path / "data")
    secrets = secrets_of(loaded)
    assert set(exported.variables.values()) == secrets.keys() - set(defaults(loaded))
    for variable, path in exported.variables.items():
        assert f"${{{variable}}}" in exported.text
        monkeypatch.setenv(variable, secrets[path])
    body = "\n".join(line for line in exported.text.splitlines() if not line.startswith("#"))
    assert not [each for each in secrets.values() if len(each) > 5 and each in body]
    (tmp_path / "exported.yml").write_text(exported.text)
    again = config.load(tmp_path / "exported.yml")
    assert again == loaded
    assert _plain(again) == _plain(loaded)


def _plain(loaded: Config) -> object:
    return document(loaded, lambda _path, text: text)


def test_defaults_are_left_out(tmp_path: Path) -> None:
    loaded = config.load(None, {"log": {"codec": "zstd"}})
    exported = written(loaded, tmp_path)
    assert yaml.safe_load(exported.text)["log"]["codec"] == "zstd"
    assert "flush_ms" not in exported.text


def test_names_of_variables_do_not_collide(tmp_path: Path) -> None:
    sink = {"type": "nats", "url": "nats://127.0.0.1:1"}
    loaded = config.Config.model_validate(
        {"pipelines": {"a-b": {"sink": sink}, "a_b": {"sink": sink}}}
    )
    variables = written(loaded, tmp_path).variables
    assert len(variables) == 2
    assert "TAILRACE_PIPELINES_A_B_SINK_URL_2" in variables


def test_a_dollar_and_a_brace_are_text(tmp_path: Path) -> None:
    sink = {"type": "nats", "url": "nats://127.0.0.1:1", "subject": "a.{table}"}
    where = "after.note <> '${HOME}' AND after.note <> '$${x}'"
    values = {"pipelines": {"a": {"where": where, "sink": sink}}}
    exported = written(config.Config.model_validate(values), tmp_path)
    (tmp_path / "t.yml").write_text(
        re.sub(r"\$\{TAILRACE_[A-Z_]*\}", "nats://127.0.0.1:1", exported.text)
    )
    assert config.load(tmp_path / "t.yml").pipelines["a"].where == where
