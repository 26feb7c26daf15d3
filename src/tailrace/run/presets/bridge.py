"""The bridge preset: PostgreSQL to NATS JetStream, from a few variables to a settings file.

`tailrace bridge` writes the settings it stands for to `DATA/bridge.yml`, where they can be read,
changed and given to the other commands. No secret is in that file: passwords stay in the
environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg.conninfo import make_conninfo

from tailrace.errors import ConfigError, PostgresRefusedError
from tailrace.postgres.bootstrap import initialise, log_exists
from tailrace.postgres.connection import connect, quote_ident
from tailrace.postgres.publication import read_publication
from tailrace.run.presets import preset
from tailrace.run.presets.preset import literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tailrace.config import Config
    from tailrace.postgres.bootstrap import Initialised

FILE = "bridge.yml"
NAME = "bridge"
_STREAM = "CDC"
_SUBJECTS = "cdc.>"
_SUBJECT = "cdc.{table}.{operation}"


def settings(
    environment: Mapping[str, str],
    *,
    slot: str,
    publication: str,
    port: int,
    as_json: bool,
    zstd: bool,
    data: Path,
) -> dict[str, Any]:
    """The content of the settings file. Literal text is escaped where a reference could begin."""
    return {
        "source": {
            "dsn": literal(_dsn(environment)),
            "slot": literal(slot),
            "publication": literal(publication),
        },
        "log": {"path": literal(str(data / "log"))},
        "data": literal(str(data)),
        "http": {"port": port},
        "pipelines": {
            NAME: {
                "shape": "bridge",
                "encoding": "json" if as_json else "msgpack",
                "snapshots": {
                    "stream": {"name": "INIT", "subjects": ["init.>"], "max_age_hours": 168},
                    "compression": "zstd" if zstd else "none",
                },
                "sink": {
                    "type": "nats",
                    "url": _nats_url(environment),
                    "user": literal(environment.get("NATS_BRIDGE_USER", "")),
                    "password": "${NATS_BRIDGE_PASSWORD:-}",
                    "stream": {"name": _STREAM, "subjects": [_SUBJECTS]},
                    "subject": _SUBJECT,
                },
            }
        },
    }


def secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """What is set for this process and its children: libpq takes the password from there.

    A reference inside the connection string would need quoting that depends on the password.
    """
    password = environment.get("POSTGRES_BRIDGE_PASSWORD", "")
    return {"PGPASSWORD": password} if password else {}


def _dsn(environment: Mapping[str, str]) -> str:
    parts = {
        "host": environment.get("PG_HOST") or "localhost",
        "port": str(_port(environment, "PG_PORT", 5432)),
        "dbname": environment.get("PG_DB") or "postgres",
        "user": environment.get("POSTGRES_BRIDGE_USER", ""),
    }
    return make_conninfo("", **{key: value for key, value in parts.items() if value})


def _nats_url(environment: Mapping[str, str]) -> str:
    if environment.get("NATS_URL"):
        # It may hold a password.
        return "${NATS_URL}"
    host = environment.get("NATS_HOST") or "localhost"
    bracketed = f"[{host}]" if ":" in host else host
    return literal(f"nats://{bracketed}:{_port(environment, 'NATS_PORT', 4222)}")


def _port(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text) < 65536:
        raise ConfigError(f"{name} should be a port, a number from 1 to 65535")
    return int(text)


def write(content: Mapping[str, Any], folder: Path) -> Path:
    """Write the settings file into the data folder, whole or not at all."""
    return preset.write(content, folder / FILE, command=NAME)


def prepare(config: Config) -> Initialised | None:
    """At the first start, make the slot. Where a log is, capture itself checks that slot fits."""
    if log_exists(config.log.path):
        return None
    source = config.source
    with connect(
        source.dsn.get_secret_value(), connect_timeout_s=config.capture.connect_timeout_s
    ) as connection:
        if read_publication(connection, source.publication) is None:
            name = quote_ident(source.publication)
            raise PostgresRefusedError(
                f"there is no publication {source.publication!r} in this database",
                hint="The owner of the tables makes it, before the bridge makes its slot: "
                f"CREATE PUBLICATION {name} FOR TABLE users, orders;",
            )
        return initialise(connection, config)
