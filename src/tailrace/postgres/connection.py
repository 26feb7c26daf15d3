"""Connections to PostgreSQL: what is asked of libpq, what its errors mean, how names are quoted.

Everything of Tailrace that speaks to the source goes through here, so that a session always has
the same text output, a cut line is always noticed, an error always has one of our codes, and a
password never leaves this module in readable form.

Not for replication commands; `tailrace.capture.replication` sends those over its own connection,
made from the same `conninfo`.
"""

from __future__ import annotations

import difflib
import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tailrace.errors import (
    ConfigError,
    PostgresRefusedError,
    PostgresUnreachableError,
    SlotBusyError,
    SlotLostError,
    TailraceError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PINNED = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "timezone": "UTC",
    "standard_conforming_strings": "on",
}
"""Settings that change how values look as text. A role, a database or a client variable may set
any of them, and the log must not depend on it."""

SESSION_SQL = "; ".join(f"SET {name} TO '{value}'" for name, value in PINNED.items())
"""Pins the same settings inside an open session. libpq sends PGTZ and PGDATESTYLE after `options`,
so the startup packet alone does not win against them."""

VALUES_SQL = f"{SESSION_SQL}; SET search_path TO ''; SET quote_all_identifiers TO off"
"""For sessions that produce values, the stream as well as a snapshot: the search path decides
whether a regclass prints with its schema. Not for sessions that resolve names a user typed."""

_LINE = {
    "keepalives": "1",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_SECRET_KEYS = ("password", "sslpassword", "oauth_client_secret")
_MASK = "***"


def conninfo(
    dsn: str,
    *,
    replication: bool = False,
    application_name: str = "tailrace",
    connect_timeout_s: int = 10,
) -> str:
    """The user's connection string with what Tailrace needs added.

    Every libpq option of the user is kept, whether from `dsn` or from a `PG*` variable. Only the
    pinned session settings and the client encoding win over the user's.
    """
    parameters = _parse(dsn)
    given = _environment() | parameters
    wanted = {
        **_LINE,
        "application_name": application_name,
        "connect_timeout": str(connect_timeout_s),
    }
    parameters |= {key: value for key, value in wanted.items() if not given.get(key)}
    # A service file's options can not be seen from here and would be replaced, not merged.
    if given.get("options") or not parameters.get("service"):
        pinned = " ".join(f"-c {name}={value}" for name, value in PINNED.items())
        parameters["options"] = f"{given.get('options', '')} {pinned}".strip()
    parameters["client_encoding"] = "UTF8"
    if replication:
        parameters["replication"] = "database"
    return make_conninfo("", **parameters)


def connect(
    dsn: str,
    *,
    application_name: str = "tailrace",
    connect_timeout_s: int = 10,
) -> psycopg.Connection:
    """An ordinary session in autocommit mode with the pinned settings."""
    text = conninfo(dsn, application_name=application_name, connect_timeout_s=connect_timeout_s)
    try:
        connection = psycopg.connect(text, autocommit=True)
    except psycopg.Error as error:
        raise translate(error, dsn=dsn) from error
    try:
        connection.execute(SESSION_SQL)
    except psycopg.Error as error:
        connection.close()
        raise translate(error, dsn=dsn) from error
    return connection


async def connect_async(
    dsn: str, *, application_name: str = "tailrace", connect_timeout_s: int = 10
) -> psycopg.AsyncConnection[Any]:
    """The same session as `connect`, for an event loop."""
    text = conninfo(dsn, application_name=application_name, connect_timeout_s=connect_timeout_s)
    try:
        connection = await psycopg.AsyncConnection.connect(text, autocommit=True)
    except psycopg.Error as error:
        raise translate(error, dsn=dsn) from error
    try:
        await connection.execute(SESSION_SQL.encode())
    except psycopg.Error as error:
        await connection.close()
        raise translate(error, dsn=dsn) from error
    return connection


def _parse(dsn: str) -> dict[str, str]:
    try:
        return {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
    except psycopg.ProgrammingError as error:
        # libpq quotes the part it could not read, which may be the password: not chained.
        raise ConfigError(
            f"source.dsn: {_unquoted(str(error))}",
            hint="Write host=... dbname=... user=... or postgresql://user@host:port/dbname; "
            "quote a value with spaces as 'a b', and percent-encode a URI's special characters.",
        ) from None


def _unquoted(message: str) -> str:
    tidy = re.sub(r'"[^"]*"?', '"..."', message.strip())
    if not tidy.startswith(("invalid connection option", "invalid URI query parameter")):
        return tidy
    options = [option.keyword.decode() for option in pq.Conninfo.get_defaults()]
    name = re.search(r'"([^"]*)"', message)
    close = difflib.get_close_matches(name[1] if name else "", options, n=1)
    return f"{tidy}, did you mean {close[0]}?" if close else tidy


def _environment() -> dict[str, str]:
    return {
        option.keyword.decode(): option.val.decode(errors="replace")
        for option in pq.Conninfo.get_defaults()
        if option.val
    }


def redact(text: str, dsn: str = "") -> str:
    """`text` without passwords: those written as such, and the ones in use in any spelling."""
    text = re.sub(r"(://[^\s:@]*):\S*@", rf"\1:{_MASK}@", text)
    keys = "|".join(_SECRET_KEYS)
    text = re.sub(rf"(?i)({keys})\s*=\s*('(?:\\.|[^'\\])*'?|[^\s&]*)", rf"\1={_MASK}", text)
    for secret in sorted(set(_spellings(dsn)), key=len, reverse=True):
        # A password of two letters would otherwise eat parts of ordinary words.
        edge = r"\b" if len(secret) < 4 and secret.isalnum() else ""
        text = re.sub(f"{edge}{re.escape(secret)}{edge}", _MASK, text)
    return text


def _known(dsn: str) -> dict[str, str]:
    try:
        return _parse(dsn)
    except ConfigError:
        return {}


def _spellings(dsn: str) -> Iterator[str]:
    parameters = _known(dsn)
    secrets = [parameters.get(key, "") for key in _SECRET_KEYS]
    for secret in filter(None, [*secrets, os.environ.get("PGPASSWORD", "")]):
        yield from (secret, quote(secret, safe=""), quote_plus(secret), quote(secret))
        yield secret.replace("\\", "\\\\").replace("'", "\\'")


def translate(error: psycopg.Error, *, dsn: str = "") -> TailraceError:
    """Our error for one of psycopg's."""
    message = error.diag.message_primary or str(error)
    if error.diag.message_detail:
        message = f"{message}: {error.diag.message_detail}"
    return classify(error.sqlstate, message, dsn=dsn)


def translate_error(connection: psycopg.Connection, error: psycopg.Error) -> TailraceError:
    """Our error for a statement that failed on `connection`."""
    try:
        dsn = make_conninfo("", user=connection.info.user)
    except psycopg.OperationalError:
        dsn = ""
    return translate(error, dsn=dsn)


def classify(sqlstate: str | None, message: str, *, dsn: str = "") -> TailraceError:
    """Our error for what PostgreSQL or libpq said.

    A failed connection attempt has no SQLSTATE, so then the words decide; words that are not
    known, or not English, count as unreachable, which is tried again.
    """
    text = redact(" ".join(message.split()), dsn)
    for pattern, kind, hint in _BY_WORDS:
        if found := re.search(pattern, text, re.IGNORECASE):
            return kind(text, hint=found.expand(hint).replace("<role>", _role(dsn)))
    if sqlstate is None or sqlstate.startswith(_TRANSIENT):
        return PostgresUnreachableError(text)
    if sqlstate == "55006":
        return SlotBusyError(text)
    for prefix, hint in _BY_STATE:
        if sqlstate.startswith(prefix):
            return PostgresRefusedError(text, hint=hint)
    return PostgresRefusedError(f"{text} (SQLSTATE {sqlstate})")


def user(dsn: str) -> str:
    """The user that `dsn` names; empty if it leaves that to libpq."""
    return _known(dsn).get("user", "")


def _role(dsn: str) -> str:
    name = user(dsn)
    return quote_ident(name) if name else "<role>"


# Connection failures, serialization, resources, shutdown and cancel, locks, I/O.
_TRANSIENT = (
    "08",
    "40",
    "53",
    "57014",
    "57P01",
    "57P02",
    "57P03",
    "57P05",
    "25P03",
    "55P03",
    "58000",
    "58030",
)

_BY_STATE = (
    ("28", "Check user and password of source.dsn and the server's pg_hba.conf."),
    ("3D000", "Correct dbname in source.dsn, or create the database."),
    ("42P01", "Check the name; as in SQL, capitals and dots need double quotes."),
    ("42501", "`tailrace init --print-sql` prints every grant that is needed."),
    ("25006", "This is a standby: connect to the primary, or add target_session_attrs=read-write."),
)

_CREDENTIALS = "Check user and password of source.dsn (or PGUSER, PGPASSWORD, the password file)."
_CERTIFICATE = (
    "Set sslrootcert in source.dsn to the certificate of the authority that signed the server's, "
    "and host to a name the certificate holds."
)

_BY_WORDS: tuple[tuple[str, type[TailraceError], str], ...] = (
    (r"can no longer (get changes from|access) replication slot", SlotLostError, ""),
    (r"requested WAL segment \w+ has already been removed", SlotLostError, ""),
    (r"replication slot .* (has been invalidated|is lost)", SlotLostError, ""),
    (r'replication slot "[^"]*" does not exist', SlotLostError, ""),
    (r'replication slot "[^"]*" is active', SlotBusyError, ""),
    (
        r'publication "([^"]*)" does not exist',
        PostgresRefusedError,
        r'Create it with `tailrace init`, or: CREATE PUBLICATION "\1" FOR TABLE ...; '
        "A slot that is older than its publication can not read the changes before it.",
    ),
    (
        r"logical decoding (on standby )?requires",
        PostgresRefusedError,
        "ALTER SYSTEM SET wal_level = logical; then restart PostgreSQL.",
    ),
    (
        r"replication slot .* was not created in this database",
        PostgresRefusedError,
        "A slot belongs to one database: correct dbname in source.dsn, or use another source.slot.",
    ),
    (
        r"all replication slots are in use",
        PostgresRefusedError,
        "Drop a slot that is not needed, or raise max_replication_slots and restart PostgreSQL.",
    ),
    (
        r"(permission denied to (start WAL sender|use replication slots)|must be superuser or "
        r"replication role)",
        PostgresRefusedError,
        "ALTER ROLE <role> REPLICATION;",
    ),
    (
        r"no pg_hba\.conf entry|pg_hba\.conf rejects",
        PostgresRefusedError,
        "Add a line for this user, database and address to pg_hba.conf and reload; "
        "replication=database connections match the database's name, not `replication`.",
    ),
    (r"authentication failed|no password supplied", PostgresRefusedError, _CREDENTIALS),
    (
        r'role "[^"]*" (does not exist|is not permitted to log in)',
        PostgresRefusedError,
        _CREDENTIALS,
    ),
    (
        r'database "[^"]*" does not exist',
        PostgresRefusedError,
        "Correct dbname in source.dsn, or create the database.",
    ),
    (
        r"certificate verify failed|server certificate for|root certificate file|"
        r"certificate authority|could not (load|read) (private key|certificate|root cert)",
        PostgresRefusedError,
        _CERTIFICATE,
    ),
    (
        r"server does not support SSL",
        PostgresRefusedError,
        "Switch TLS on in the server (ssl = on), or choose another sslmode for a trusted line.",
    ),
)


def quote_ident(name: str) -> str:
    """`name` as an SQL identifier.

    >>> quote_ident('odd"name; --')
    '"odd""name; --"'
    """
    if "\0" in name:
        raise ValueError("PostgreSQL names can not hold a NUL character")
    return '"' + name.replace('"', '""') + '"'


def quote_literal(value: str) -> str:
    """`value` as an SQL string, for commands that take no parameters.

    Right for replication commands, which know no escapes, and for SQL in a pinned session, where
    standard_conforming_strings is on.
    """
    if "\0" in value:
        raise ValueError("PostgreSQL strings can not hold a NUL character")
    return "'" + value.replace("'", "''") + "'"


def lacks_privilege(error: TailraceError) -> bool:
    """Whether PostgreSQL refused because the role lacks a privilege."""
    return isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege)


def dsn_of(**parameters: str) -> str:
    """A connection string of libpq parameters; empty values are left out.

    >>> dsn_of(host="db", dbname="my shop", user="")
    "host=db dbname='my shop'"
    """
    return make_conninfo("", **{name: value for name, value in parameters.items() if value})
