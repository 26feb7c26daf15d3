"""The shadow preset: turns the options of `tailrace shadow` into a settings file of `tailrace run`.

The file is `DATA/shadow.yml`, which the other commands of the shadow read. It has no secrets: the
connection string and Kafka's password stay in the environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import structlog

from tailrace.errors import ConfigError, PostgresError
from tailrace.postgres.bootstrap import initialise, log_exists
from tailrace.postgres.connection import connect, translate_error
from tailrace.postgres.names import quote_ident
from tailrace.postgres.publication import read_publication
from tailrace.run.presets import preset
from tailrace.run.presets.preset import HTTP_TOKEN, literal
from tailrace.shadow.settings import ShadowSink
from tailrace.shadow.sink_type import SINK as SHADOW

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tailrace.config import Config
    from tailrace.postgres.bootstrap import Initialised
    from tailrace.shadow.settings import ShadowSettings

FILE = "shadow.yml"
NAME = "shadow"
DSN = "TAILRACE_SHADOW_DSN"
_LATER_START_TIMEOUT_S = 2
_SWEEP = b"SELECT kafka.shadow_sweep()"
_TOPIC = """
SELECT t.id, t.unlogged, array_agg(p.log_start ORDER BY p.partition_id),
       array_agg(p.next_offset ORDER BY p.partition_id)
FROM kafka.topics t JOIN kafka.partitions p ON p.topic_id = t.id WHERE t.name = %s GROUP BY 1, 2
"""
_ON = """
INSERT INTO kafka.shadow (topic_id, enabled, append, starts) VALUES (%s, true, %s, %s)
ON CONFLICT (topic_id) DO UPDATE
SET enabled = true, append = EXCLUDED.append OR kafka.shadow.append,
    starts = CASE WHEN EXCLUDED.starts = '{}' THEN kafka.shadow.starts ELSE EXCLUDED.starts END
"""
_OFF = """
INSERT INTO kafka.shadow (topic_id, enabled) VALUES (%s, false)
ON CONFLICT (topic_id) DO UPDATE SET enabled = false
"""


def config_file(settings: ShadowSettings, data: Path) -> dict[str, Any]:
    """The content of the settings file."""
    login = {
        key: literal(value) if isinstance(value, str) else value
        for key, value in settings.kafka.items()
    }
    return {
        "source": {
            "dsn": f"${{{DSN}:-}}",
            "slot": literal(settings.slot),
            "publication": literal(settings.publication),
        },
        "log": {"path": literal(str(data / "log"))},
        "data": literal(str(data)),
        "http": {"port": settings.port, "token": HTTP_TOKEN},
        "pipelines": {
            NAME: {
                "tables": ["kafka.messages"],
                "messages": ["tailrace.shadow"],
                "shape": "record",
                "schema_changes": "ignore",
                "sink": {
                    "type": SHADOW.name,
                    "bootstrap": literal(settings.to),
                    "dsn": f"${{{DSN}:-}}",
                    "password": "${KAFKA_PASSWORD:-}",
                    **login,
                },
            }
        },
    }


def write(content: Mapping[str, Any], folder: Path) -> Path:
    """Write the settings file into the data folder, atomically."""
    return preset.write(content, folder / FILE, command=NAME)


def sink_of(config: Config) -> ShadowSink:
    """The sink in the settings that `write` wrote."""
    pipeline = config.pipelines.get(NAME)
    if pipeline is None or not isinstance(pipeline.sink, ShadowSink):
        raise ConfigError(
            f"the settings file has no pipeline {NAME} with a sink of type shadow",
            hint="Write it again: tailrace shadow --to ...",
        )
    return pipeline.sink


def prepare(config: Config) -> Initialised | None:
    """At the first start, create publication and slot. At every start, request a copy of existing
    records: topics that Kafka had refused are tried again."""
    source = config.source
    if log_exists(config.log.path):
        _request_copy(source.dsn.get_secret_value())
        return None
    with connect(
        source.dsn.get_secret_value(), connect_timeout_s=config.capture.connect_timeout_s
    ) as connection:
        try:
            row = connection.execute("SELECT to_regclass('kafka.shadow')").fetchone()
            if row is None or row[0] is None:
                raise ConfigError(
                    "the tables of the broker are missing or out of date in this database",
                    hint="Create or update them: tailrace broker --init",
                )
            if read_publication(connection, source.publication) is None:
                # Inserts only: the deletes of retention must not reach Kafka.
                name = quote_ident(source.publication)
                connection.execute(
                    f"CREATE PUBLICATION {name} FOR TABLE kafka.messages "
                    "WITH (publish = 'insert')".encode()
                )
            initialised = initialise(connection, config)
            connection.execute(_SWEEP)
        except psycopg.Error as error:
            raise translate_error(connection, error) from error
        return initialised


def _request_copy(dsn: str) -> None:
    """Request a copy at a later start, if PostgreSQL answers: the shadow does not depend on it."""
    try:
        with connect(dsn, connect_timeout_s=_LATER_START_TIMEOUT_S) as connection:
            connection.execute(_SWEEP)
    except (PostgresError, psycopg.Error) as error:
        structlog.get_logger().warning("shadow.copy_not_requested", reason=str(error).strip())


def turn_on(dsn: str, topics: Sequence[str], *, start: str = "", append: bool = False) -> None:
    """Copy topics from `earliest`, `latest` or an offset on; by default resume."""
    with connect(dsn) as connection, connection.transaction():
        for name in topics:
            topic_id, firsts, ends = _topic(connection, name)
            starts = _starts(start, firsts, ends)
            connection.execute(_ON, (topic_id, append, starts))
        connection.execute(_SWEEP)


def turn_off(dsn: str, topics: Sequence[str]) -> None:
    """Stop to copy topics. Their records stay in Kafka, and `turn_on` resumes after them."""
    with connect(dsn) as connection, connection.transaction():
        for name in topics:
            connection.execute(_OFF, (_topic(connection, name)[0],))


def _topic(
    connection: psycopg.Connection[Any], name: str
) -> tuple[int, Sequence[int], Sequence[int]]:
    row = connection.execute(_TOPIC, (name,)).fetchone()
    if row is None:
        raise ConfigError(
            f"topic {name} does not exist", hint="List topics: SELECT name FROM kafka.topics"
        )
    topic_id, unlogged, firsts, ends = row
    if unlogged:
        raise ConfigError(f"topic {name} is unlogged: its records are not in the WAL")
    return topic_id, firsts, ends


def _starts(start: str, firsts: Sequence[int], ends: Sequence[int]) -> list[int]:
    if start in ("", "earliest"):
        return [] if not start else list(firsts)
    if start == "latest":
        return list(ends)
    if start.isdecimal():
        return [int(start)] * len(ends)
    raise ConfigError(f"--from must be earliest, latest or an offset, got {start!r}")
