from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from tailrace.config import load
from tailrace.errors import ConfigError
from tailrace.sinks.registry import SINKS
from tailrace.sinks.sink_type import SinkSettings

DOCS = Path(__file__).parents[3] / "docs" / "guides"


@pytest.mark.parametrize("name", SINKS.built_in)
def test_a_registration_is_complete(name: str) -> None:
    sink = SINKS.find(name)
    assert sink.name == name
    assert sink.title
    assert issubclass(sink.settings, SinkSettings)
    assert get_args(sink.settings.model_fields["type"].annotation) == (name,)
    assert all(dataclasses.asdict(sink.promises).values())


@pytest.mark.parametrize("name", SINKS.built_in)
def test_a_sink_has_a_page(name: str) -> None:
    assert (DOCS / f"{name}.md").exists()


def of(sink: object) -> Any:
    return load(None, {"pipelines": {"p": {"sink": sink}}}).pipelines["p"].sink


def test_settings_become_the_model_of_their_kind() -> None:
    assert isinstance(of({"type": "nats"}), SINKS.find("nats").settings)
    assert isinstance(of({"type": "kafka"}), SINKS.find("kafka").settings)


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        ({"type": "nots"}, r"pipelines\.p\.sink: unknown sink 'nots', did you mean nats\?"),
        ({}, r"sink: needs a `type`: nats, kafka, http, redis, rabbitmq, postgres, file, "),
        ({"type": "nats", "strem": 1}, r"pipelines\.p\.sink\.strem: unknown key.* stream\?"),
        ({"type": "nats", "stream": {"nam": 1}}, r"sink\.stream\.nam: unknown key.* name\?"),
        ({"type": "kafka", "stream": {}}, r"pipelines\.p\.sink\.stream: unknown key"),
        ({"type": "nats", "max_outstanding": 0}, r"sink\.max_outstanding: .* equal to 1"),
        (7, r"pipelines\.p\.sink: must be a section"),
    ],
)
def test_an_error_names_the_key(sink: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        of(sink)


def test_settings_load_no_client_library() -> None:
    sinks: dict[str, dict[str, Any]] = {
        "nats": {},
        "kafka": {},
        "http": {"url": "https://example.com"},
        "redis": {},
        "rabbitmq": {},
        "sqs": {"queue": "{table}"},
        "sns": {"topic": "arn:{table}"},
        "kinesis": {"stream": "{table}"},
        "eventbridge": {},
        "pubsub": {"project": "shop-1", "topic": "{table}"},
    }
    pipelines = {name: {"sink": {"type": name, **keys}} for name, keys in sinks.items()}
    program = (
        "import sys; from tailrace.config import load;"
        f"load(None, {{'pipelines': {pipelines!r}}});"
        "print(sorted({'nats', 'confluent_kafka', 'httpcore', 'redis', 'botocore', 'pyarrow',"
        " 'elastic_transport', 'amqp', 'google', 'grpc',"
        " 'numpy', 'pyspark', 'psycopg'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"
