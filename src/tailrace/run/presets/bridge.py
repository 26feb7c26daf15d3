"""The bridge preset: PostgreSQL to NATS JetStream, from a few variables to a settings file.

`tailrace bridge` writes its settings to `DATA/bridge.yml`, which the other commands accept too. The
file holds no secret: passwords stay in the environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.errors import ConfigError, PostgresRefusedError
from tailrace.postgres.bootstrap import initialise, log_exists
from tailrace.postgres.connection import connect, dsn_of
from tailrace.postgres.names import quote_ident
from tailrace.postgres.publication import read_publication
from tailrace.run.presets import preset
from tailrace.run.presets.preset import http_section, literal
from tailrace.sinks.nats.sink_type import SINK as NATS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tailrace.config import Config
    from tailrace.postgres.bootstrap import Initialised
    from tailrace.run.presets.options import BridgeOptions

FILE = "bridge.yml"
NAME = "bridge"
_STREAM = "CDC"
_SUBJECTS = "cdc.>"
_SUBJECT = "cdc.{table}.{operation}"


def settings(options: BridgeOptions, environment: Mapping[str, str]) -> dict[str, Any]:
    """The content of the settings file. Literal text is escaped where a reference could begin."""
    data = options.folder
    return {
        "source": {
            "dsn": literal(_dsn(environment)),
            "slot": literal(options.slot),
            "publication": literal(options.pub),
        },
        "log": {"path": literal(str(data / "log"))},
        "data": literal(str(data)),
        "http": http_section(
            host=options.host, port=options.port, hosts=options.hosts, insecure=options.insecure
        ),
        "pipelines": {
            NAME: {
                "shape": "bridge",
                "encoding": "json" if options.as_json else "msgpack",
                "snapshots": {
                    "stream": {"name": "INIT", "subjects": ["init.>"], "max_age_hours": 168},
                    "compression": "zstd" if options.zstd else "none",
                },
                "sink": {
                    "type": NATS.name,
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
    """Variables for this process and its children: libpq reads the password from there.

    A reference in the connection string would need quotes that depend on the password.
    """
    password = environment.get("POSTGRES_BRIDGE_PASSWORD", "")
    return {"PGPASSWORD": password} if password else {}


def _dsn(environment: Mapping[str, str]) -> str:
    return dsn_of(
        host=environment.get("PG_HOST") or "localhost",
        port=str(_port(environment, "PG_PORT", 5432)),
        dbname=environment.get("PG_DB") or "postgres",
        user=environment.get("POSTGRES_BRIDGE_USER", ""),
    )


def _nats_url(environment: Mapping[str, str]) -> str:
    if environment.get("NATS_URL"):
        # By reference: it may hold a password.
        return "${NATS_URL}"
    host = environment.get("NATS_HOST") or "localhost"
    bracketed = f"[{host}]" if ":" in host else host
    return literal(f"nats://{bracketed}:{_port(environment, 'NATS_PORT', 4222)}")


def _port(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text) < 65536:
        raise ConfigError(f"{name} must be a port from 1 to 65535, got {text!r}")
    return int(text)


def write(content: Mapping[str, Any], folder: Path) -> Path:
    """Write the settings file into the data folder, atomically."""
    return preset.write(content, folder / FILE, command=NAME)


def prepare(config: Config) -> Initialised | None:
    """Create the slot at the first start. If there is a log, capture checks that the slot fits."""
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
                hint="The owner of the tables creates it, before the bridge creates its slot: "
                f"CREATE PUBLICATION {name} FOR TABLE users, orders;",
            )
        return initialise(connection, config)
