"""The shadow preset: the broker's topics to a real Kafka, from a few options to a settings file.

`tailrace shadow` writes the settings it stands for to `DATA/shadow.yml`, where its other commands
find them. No secret is in that file: the connection string and Kafka's password stay in the
environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from tailrace.config import ShadowSink
from tailrace.errors import ConfigError
from tailrace.postgres.bootstrap import initialise, log_exists
from tailrace.postgres.connection import connect, quote_ident, translate_error
from tailrace.postgres.publication import read_publication
from tailrace.run.presets import preset
from tailrace.run.presets.preset import literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tailrace.config import Config
    from tailrace.postgres.bootstrap import Initialised

FILE = "shadow.yml"
NAME = "shadow"
DSN = "TAILRACE_SHADOW_DSN"
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


def settings(
    to: str,
    *,
    kafka: Mapping[str, object],
    slot: str,
    publication: str,
    port: int,
    data: Path,
) -> dict[str, Any]:
    """The content of the settings file. `kafka` is how to log in there."""
    given = {
        key: literal(value) if isinstance(value, str) else value for key, value in kafka.items()
    }
    return {
        "source": {
            "dsn": f"${{{DSN}:-}}",
            "slot": literal(slot),
            "publication": literal(publication),
        },
        "log": {"path": literal(str(data / "log"))},
        "data": literal(str(data)),
        "http": {"port": port},
        "pipelines": {
            NAME: {
                "tables": ["kafka.messages"],
                "messages": ["tailrace.shadow"],
                "shape": "record",
                "schema_changes": "ignore",
                "sink": {
                    "type": "shadow",
                    "bootstrap": literal(to),
                    "dsn": f"${{{DSN}:-}}",
                    "password": "${KAFKA_PASSWORD:-}",
                    **given,
                },
            }
        },
    }


def write(content: Mapping[str, Any], folder: Path) -> Path:
    """Write the settings file into the data folder, whole or not at all."""
    return preset.write(content, folder / FILE, command=NAME)


def sink_of(config: Config) -> ShadowSink:
    """The sink of the settings that `write` has written."""
    pipeline = config.pipelines.get(NAME)
    if pipeline is None or not isinstance(pipeline.sink, ShadowSink):
        raise ConfigError(f"the settings have no pipeline {NAME} with the sink `shadow`")
    return pipeline.sink


def prepare(config: Config) -> Initialised | None:
    """At the first start, make publication and slot, and ask for the records that are there."""
    if log_exists(config.log.path):
        return None
    source = config.source
    with connect(
        source.dsn.get_secret_value(), connect_timeout_s=config.capture.connect_timeout_s
    ) as connection:
        try:
            row = connection.execute("SELECT to_regclass('kafka.shadow')").fetchone()
            if row is None or row[0] is None:
                raise ConfigError(
                    "the database has no tables for topics, or older ones",
                    hint="Make them, or bring them up to date: tailrace broker --init",
                )
            if read_publication(connection, source.publication) is None:
                # Retention deletes records; nobody over there needs to know.
                name = quote_ident(source.publication)
                connection.execute(
                    f"CREATE PUBLICATION {name} FOR TABLE kafka.messages "
                    "WITH (publish = 'insert')".encode()
                )
            made = initialise(connection, config)
            connection.execute(_SWEEP)
        except psycopg.Error as error:
            raise translate_error(connection, error) from error
        return made


def turn_on(dsn: str, topics: Sequence[str], *, start: str = "", append: bool = False) -> None:
    """Have topics copied, from `earliest`, `latest` or an offset on; empty: where they were."""
    with connect(dsn) as connection, connection.transaction():
        for name in topics:
            found, firsts, ends = _topic(connection, name)
            starts = _starts(start, firsts, ends)
            connection.execute(_ON, (found, append, starts))
        connection.execute(_SWEEP)


def turn_off(dsn: str, topics: Sequence[str]) -> None:
    """Have topics copied no more. What is there stays, and `turn_on` goes on behind it."""
    with connect(dsn) as connection, connection.transaction():
        for name in topics:
            connection.execute(_OFF, (_topic(connection, name)[0],))


def _topic(
    connection: psycopg.Connection[Any], name: str
) -> tuple[int, Sequence[int], Sequence[int]]:
    row = connection.execute(_TOPIC, (name,)).fetchone()
    if row is None:
        raise ConfigError(f"there is no topic {name}", hint="kafka.topics lists them.")
    found, unlogged, firsts, ends = row
    if unlogged:
        raise ConfigError(f"topic {name} is unlogged: the WAL does not have its records")
    return found, firsts, ends


def _starts(start: str, firsts: Sequence[int], ends: Sequence[int]) -> list[int]:
    if start in ("", "earliest"):
        return [] if not start else list(firsts)
    if start == "latest":
        return list(ends)
    if start.isdecimal():
        return [int(start)] * len(ends)
    raise ConfigError(
        f"{start!r} is no place to start at", hint="Write earliest, latest or an offset."
    )
