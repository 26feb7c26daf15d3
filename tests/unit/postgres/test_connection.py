"""Connection strings, the meaning of errors, quoting, and that no password is ever shown."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from tailrace.errors import (
    ConfigError,
    PostgresRefusedError,
    PostgresUnreachableError,
    SlotBusyError,
    SlotLostError,
    TailraceError,
)
from tailrace.postgres.connection import (
    PINNED,
    SESSION_SQL,
    classify,
    conninfo,
    redact,
    translate,
    user,
)
from tailrace.postgres.names import quote_ident, quote_literal

CANARY = "c4n%ry/7f@3a"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGOPTIONS", "PGCONNECT_TIMEOUT", "PGAPPNAME", "PGPASSWORD", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)


def parsed(dsn: str, *, replication: bool = False) -> dict[str, object]:
    return dict(conninfo_to_dict(conninfo(dsn, replication=replication)))


def test_session_settings_are_pinned() -> None:
    options = str(parsed("host=x")["options"])
    for name, value in PINNED.items():
        assert f"-c {name}={value}" in options
        assert f"SET {name} TO '{value}'" in SESSION_SQL


def test_the_users_options_come_first_so_that_ours_win() -> None:
    options = str(parsed("host=x options='-c timezone=Asia/Tokyo -c work_mem=1MB'")["options"])
    assert options.startswith("-c timezone=Asia/Tokyo -c work_mem=1MB -c datestyle=ISO")
    assert options.rindex("timezone=UTC") > options.index("timezone=Asia/Tokyo")


def test_options_of_the_environment_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=1MB")
    assert str(parsed("host=x")["options"]).startswith("-c work_mem=1MB -c datestyle=ISO")


def test_options_of_a_service_are_left_to_libpq() -> None:
    assert "options" not in parsed("service=shop")
    assert "-c a=b" in str(parsed("service=shop options='-c a=b'")["options"])


def test_every_option_of_the_user_is_kept() -> None:
    dsn = (
        "postgresql://me:p%40ss@one:5433,two:5434/shop?sslmode=verify-full&sslrootcert=/ca.pem"
        "&target_session_attrs=read-write&keepalives_idle=5&connect_timeout=3&application_name=mine"
    )
    values = parsed(dsn)
    for key, value in conninfo_to_dict(dsn).items():
        assert str(values[key]) == str(value), key
    assert values["keepalives_count"] == "3"


def test_defaults_fill_what_is_not_given() -> None:
    values = parsed("")
    assert values["application_name"] == "tailrace"
    assert str(values["connect_timeout"]) == "10"
    assert values["client_encoding"] == "UTF8"
    assert values["keepalives"] == "1"
    assert "replication" not in values


def test_defaults_do_not_hide_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "77")
    monkeypatch.setenv("PGAPPNAME", "theirs")
    values = parsed("host=x")
    assert "connect_timeout" not in values
    assert "application_name" not in values


def test_replication_connections_name_a_database() -> None:
    assert parsed("host=x", replication=True)["replication"] == "database"


@pytest.mark.parametrize(
    ("dsn", "words"),
    [
        ("host=x sslmod=require", "did you mean sslmode?"),
        ("postgresql://h/db?sslmod=require", "did you mean sslmode?"),
        (f"host=x {CANARY}", "missing"),
        (f"password='{CANARY}", "unterminated quoted string"),
        ("postgresql://u:se%zz@h/db", "invalid percent-encoded token"),
        (f"postgresql://[{CANARY}", "end of string"),
    ],
)
def test_a_bad_dsn_is_explained_and_not_shown(dsn: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        conninfo(dsn)
    assert words in str(caught.value)
    assert str(caught.value).startswith("source.dsn: ")
    assert caught.value.__suppress_context__
    for secret in (CANARY, "se%zz"):
        assert secret not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize(
    ("sqlstate", "message", "kind", "hint"),
    [
        ("08006", "connection lost", PostgresUnreachableError, "tailrace doctor"),
        (
            "57P01",
            "terminating connection due to administrator command",
            PostgresUnreachableError,
            "",
        ),
        ("57P03", "the database system is starting up", PostgresUnreachableError, ""),
        ("57014", "canceling statement due to user request", PostgresUnreachableError, ""),
        ("53300", "too many connections for role", PostgresUnreachableError, ""),
        ("53100", "could not write: No space left on device", PostgresUnreachableError, ""),
        ("40001", "could not serialize access", PostgresUnreachableError, ""),
        (None, "server closed the connection unexpectedly", PostgresUnreachableError, ""),
        (None, "connection timeout expired", PostgresUnreachableError, ""),
        (None, "FATAL: etwas in einer anderen Sprache", PostgresUnreachableError, ""),
        ("55006", 'replication slot "s" is active for PID 7', SlotBusyError, "active_pid"),
        ("55006", "object in use", SlotBusyError, ""),
        ("55000", 'can no longer get changes from replication slot "s"', SlotLostError, "init"),
        ("55000", 'can no longer access replication slot "s"', SlotLostError, "snapshot"),
        ("58P01", "requested WAL segment 0001 has already been removed", SlotLostError, ""),
        ("42704", 'replication slot "s" does not exist', SlotLostError, ""),
        (
            "42704",
            'publication "p" does not exist',
            PostgresRefusedError,
            'CREATE PUBLICATION "p" FOR TABLE',
        ),
        (
            "55000",
            'logical decoding requires "wal_level" >= "logical"',
            PostgresRefusedError,
            "ALTER SYSTEM SET wal_level = logical;",
        ),
        (
            "55000",
            "logical decoding requires wal_level >= logical",
            PostgresRefusedError,
            "ALTER SYSTEM SET wal_level = logical;",
        ),
        (
            "55000",
            'replication slot "s" was not created in this database',
            PostgresRefusedError,
            "dbname",
        ),
        (
            "53400",
            "all replication slots are in use",
            PostgresRefusedError,
            "max_replication_slots",
        ),
        (
            "42501",
            "permission denied to use replication slots",
            PostgresRefusedError,
            'ALTER ROLE "me" REPLICATION;',
        ),
        (
            "42501",
            "must be superuser or replication role to use replication slots",
            PostgresRefusedError,
            'ALTER ROLE "me" REPLICATION;',
        ),
        (None, "FATAL:  permission denied to start WAL sender", PostgresRefusedError, "ALTER ROLE"),
        ("42501", "permission denied for database shop", PostgresRefusedError, "--print-sql"),
        ("42P01", 'relation "x" does not exist', PostgresRefusedError, "double quotes"),
        ("28P01", 'password authentication failed for user "u"', PostgresRefusedError, "password"),
        ("28000", "anything", PostgresRefusedError, "pg_hba.conf"),
        (None, "fe_sendauth: no password supplied", PostgresRefusedError, "PGPASSWORD"),
        (None, 'no pg_hba.conf entry for host "10.0.0.1"', PostgresRefusedError, "pg_hba.conf"),
        ("3D000", 'database "x" does not exist', PostgresRefusedError, "dbname"),
        (None, 'FATAL:  role "x" does not exist', PostgresRefusedError, "user"),
        (None, "SSL error: certificate verify failed", PostgresRefusedError, "sslrootcert"),
        (
            None,
            'server certificate for "db" does not match host name "localhost"',
            PostgresRefusedError,
            "sslrootcert",
        ),
        (
            None,
            "server does not support SSL, but SSL was required",
            PostgresRefusedError,
            "ssl = on",
        ),
        ("25006", "cannot execute in a read-only transaction", PostgresRefusedError, "read-write"),
        ("42601", "syntax error", PostgresRefusedError, "tailrace doctor"),
    ],
)
def test_what_an_error_means(
    sqlstate: str | None, message: str, kind: type[TailraceError], hint: str
) -> None:
    error = classify(sqlstate, message, dsn="user=me")
    assert type(error) is kind
    assert " ".join(message.split()) in str(error)
    assert hint in error.hint


def test_a_role_that_is_not_known_is_left_open() -> None:
    error = classify("42501", "permission denied to use replication slots")
    assert error.hint == "ALTER ROLE <role> REPLICATION;"


def test_translate_takes_the_sqlstate() -> None:
    assert isinstance(translate(psycopg.errors.ObjectInUse("busy")), SlotBusyError)
    assert isinstance(translate(psycopg.OperationalError("gone")), PostgresUnreachableError)


@pytest.mark.parametrize(
    "text",
    [
        f"host=x password={CANARY} user=me",
        f"host=x password = '{CANARY}' user=me",
        "postgresql://me:c4n%25ry%2F7f%403a@db/shop",
        f"postgresql://me:{CANARY}@db/shop",
        "postgresql://db/shop?password=c4n%25ry%2F7f%403a&user=me",
        f"PGPASSWORD={CANARY} psql",
        f"sslpassword={CANARY}",
    ],
)
def test_passwords_are_stripped_from_text(text: str) -> None:
    clean = redact(text)
    assert "***" in clean
    for part in ("c4n", "7f@3a", "7f%403a"):
        assert part not in clean


def test_the_password_in_use_is_stripped_wherever_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri = "postgresql://me:c4n%25ry%2F7f%403a@db/shop"
    assert redact(f"odd {CANARY} c4n%25ry%2F7f%403a text", uri) == "odd *** *** text"
    quoted = r"password='it\'s'"
    assert redact("it's and it\\'s", quoted) == "*** and ***"
    monkeypatch.setenv("PGPASSWORD", CANARY)
    assert redact(f"<{CANARY}>") == "<***>"


def test_a_short_password_does_not_eat_words() -> None:
    assert redact("a wall at a", "password=a") == "*** wall at ***"


def test_redact_takes_a_dsn_that_can_not_be_read() -> None:
    assert redact("plain", "host=x nonsense") == "plain"


def test_classified_errors_hold_no_password() -> None:
    dsn = f"host=x password='{CANARY}'"
    error = classify(None, f"bad thing with {CANARY} in it", dsn=dsn)
    assert CANARY not in str(error) + error.hint + repr(error)


def test_the_user_of_a_dsn() -> None:
    assert user("postgresql://me:x@db/shop") == "me"
    assert user("") == ""
    assert user("not a dsn") == ""


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_quoting_can_be_undone(text: str) -> None:
    ident, literal = quote_ident(text), quote_literal(text)
    assert ident[0] == ident[-1] == '"'
    assert ident[1:-1].replace('""', "") == text.replace('"', "")
    assert ident[1:-1].replace('""', '"') == text
    assert literal[0] == literal[-1] == "'"
    assert literal[1:-1].replace("''", "'") == text


@pytest.mark.parametrize("quote", [quote_ident, quote_literal])
def test_nul_is_refused(quote: type[str]) -> None:
    with pytest.raises(ValueError, match="NUL"):
        quote("a\0b")


@pytest.mark.parametrize("dsn", ["host=db", "host=db sslmode=verify-full"])
def test_sslmode_is_the_users_or_libpqs_default(dsn: str) -> None:
    before, after = conninfo_to_dict(dsn), conninfo_to_dict(conninfo(dsn))
    assert after.get("sslmode") == before.get("sslmode")
