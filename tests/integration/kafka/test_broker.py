"""The embedded broker: it keeps its data over restarts and reports why it cannot start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.testing import EmbeddedKafka
from tests.unit.sinks.rows import write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.kafka.reading import Bench


@pytest.mark.long
def test_messages_survive_a_restart(brittle: EmbeddedKafka, brittle_bench: Bench) -> None:
    with brittle_bench.opened() as sink:
        write(sink, brittle_bench.rows(range(100)))
        sink.flush()
    for end in (brittle.kill, brittle.stop):
        end()
        brittle.start()
        assert brittle_bench.numbers() == list(range(100))


def test_a_broker_that_cannot_start_reports_the_reason(kafka_available: None) -> None:
    server = EmbeddedKafka(config="log.retention.hours=never")
    with pytest.raises(RuntimeError, match="never"):
        server.start()
    server.destroy()


def test_without_java_it_is_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "Java 17" in (EmbeddedKafka.unavailable() or "")


def test_without_maven_it_cannot_be_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "mvn" in (EmbeddedKafka.unavailable() or "")
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho no route to the repository\nexit 1\n")
    maven.chmod(0o755)
    assert "no route to the repository" in (EmbeddedKafka.unavailable() or "")
    assert not list((tmp_path / "cache" / "tailrace").iterdir())
