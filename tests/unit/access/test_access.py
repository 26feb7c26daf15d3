"""Passwords, sessions, failed attempts and tokens, without HTTP."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tailrace.access import password
from tailrace.access.access import check_protection
from tailrace.access.attempts import _MAX_ADDRESSES, FREE, Attempts
from tailrace.access.identity import Identity, Level
from tailrace.access.sessions import _MAX, LIFETIME_S, Sessions
from tailrace.access.tokens import Tokens
from tailrace.config import Http
from tailrace.errors import ConfigError
from tests.command import call, run

if TYPE_CHECKING:
    from pathlib import Path

HASH = password.UNKNOWN_USER
ANN = Identity(name="ann", level=Level.OPERATOR)


@pytest.mark.parametrize(
    "stored",
    ["", "correct horse", "scrypt$1$8$5$a$b", HASH[:-4], "md5$16384$8$5$a$b",
     HASH.replace("16384", "1048576"), HASH.replace("$8$", "$999$"), HASH.replace("16384", "-1")],
)  # fmt: skip
def test_what_is_not_a_hash_is_refused(stored: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the settings show the text
        password.parse(stored)
    with pytest.raises(ValueError, match="password"):
        Http.model_validate({"users": {"ann": {"password": stored}}})


def test_two_hashes_of_a_password_differ() -> None:
    other = password.hashed("correct horse")
    assert other != password.hashed("correct horse")
    assert password.verify("correct horse", other)
    assert not password.verify("", other)


def test_a_session_ends_after_its_time_and_at_logout() -> None:
    now = [0.0]
    sessions = Sessions(clock=lambda: now[0])
    first, second = sessions.create(ANN), sessions.create(ANN)
    found = sessions.identity(first)
    assert found is not None
    assert (found.name, found.level) == ("ann", Level.OPERATOR)
    assert found.csrf
    sessions.end(second)
    assert sessions.identity(second) is None
    now[0] = LIFETIME_S
    assert sessions.identity(first) is None
    assert sessions.identity("") is None


def test_sessions_are_bounded() -> None:
    sessions = Sessions(clock=lambda: 0.0)
    cookies = [sessions.create(ANN) for _ in range(_MAX + 1)]
    assert sessions.identity(cookies[0]) is None
    assert sessions.identity(cookies[1])


def test_failures_cost_more_and_more_and_are_forgotten() -> None:
    now = [0.0]
    attempts = Attempts(clock=lambda: now[0])
    assert [attempts.begin("10.0.0.7", "ann") for _ in range(FREE + 1)] == [0] * (FREE + 1)
    waits = []
    for _ in range(12):
        waits.append(attempts.begin("10.0.0.7", "ann"))
        now[0] += waits[-1]
        assert attempts.begin("10.0.0.7", "ann") == 0
    assert waits[:3] == [2, 4, 8]
    assert max(waits) == 900
    now[0] += 10_000
    assert [attempts.begin("10.0.0.7", "ann") for _ in range(FREE + 2)] == [0] * (FREE + 1) + [2]


def test_the_wait_begins_when_the_failure_is_known() -> None:
    """GIVEN a machine on which a hash takes longer than the first wait WHEN the last free login has
    failed THEN the address has to wait from then on."""
    now = [0.0]
    attempts = Attempts(clock=lambda: now[0])
    for _ in range(FREE + 1):
        assert attempts.begin("10.0.0.7", "ann") == 0
        now[0] += 3
        attempts.failed("10.0.0.7")
    assert attempts.begin("10.0.0.7", "ann") == 2


def test_a_login_forgets_the_failures_of_its_user_alone() -> None:
    """GIVEN an address that guesses the password of ann and logs in as vic between the guesses WHEN
    it has done so often THEN it has to wait; vic's own failures are forgotten."""
    attempts = Attempts(clock=lambda: 0.0)
    for _ in range(FREE):
        assert attempts.begin("10.0.0.7", "vic") == 0
    attempts.succeeded("10.0.0.7", "vic")
    waits = []
    for user in ["ann", "vic", "", "vic"] * FREE:
        waits.append(attempts.begin("10.0.0.7", user))
        if user == "vic" and not waits[-1]:
            attempts.succeeded("10.0.0.7", user)
    assert waits[0] == 0
    assert waits[-1] == 2
    for _ in range(FREE * 3):
        assert attempts.begin("10.0.0.8", "") == 0
        attempts.succeeded("10.0.0.8", "")
    assert list(attempts._failures) == ["10.0.0.7"]


def test_an_ipv6_client_is_its_network() -> None:
    attempts = Attempts(clock=lambda: 0.0)
    for number in range(FREE + 1):
        assert attempts.begin(f"2001:db8::{number:x}", "ann") == 0
    assert attempts.begin("2001:db8::ffff", "ann") == 2
    assert attempts.begin("2001:db8:0:1::1", "ann") == 0
    attempts.succeeded("2001:db8::1", "ann")
    assert attempts.begin("2001:db8::ffff", "ann") == 0


def test_addresses_are_bounded() -> None:
    attempts = Attempts(clock=lambda: 0.0)
    for number in range(_MAX_ADDRESSES + 10):
        attempts.begin(f"{number}", "")
    assert len(attempts._failures) == _MAX_ADDRESSES


def test_tokens_are_stored_as_hashes_for_their_owner(tmp_path: Path) -> None:
    """GIVEN a token WHEN its file is read THEN it has no token, and its owner alone can read it."""
    tokens = Tokens(tmp_path)
    text = tokens.create("read", timedelta(days=30), user="ann", note="grafana")
    content = (tmp_path / "tokens.json").read_text()
    assert text not in content
    assert text.split("_", 2)[2] not in content
    assert stat.S_IMODE((tmp_path / "tokens.json").stat().st_mode) == 0o600
    found = Tokens(tmp_path).identity(text)
    assert found is not None
    assert found.level is Level.VIEWER
    assert Tokens(tmp_path).identity(text + "x") is None
    assert Tokens(tmp_path).identity("") is None


def test_a_token_by_command(tmp_path: Path) -> None:
    """GIVEN the command WHEN a token is created, listed and revoked THEN it is printed once, and a
    running server, which has read the file before, follows."""
    file = tmp_path / "tailrace.yml"
    file.write_text("data: data\n")
    serving = Tokens(tmp_path / "data")
    assert serving.identity("x") is None
    made = call("token", "create", "--scope", "operate", "--expires", "12h", "-c", file)
    text = made.stdout.strip()
    found = serving.identity(text)
    assert found is not None
    assert found.level is Level.OPERATOR
    listed = call("token", "ls", "-c", file).stdout
    assert found.name.split()[1] in listed
    assert text not in listed
    assert call("token", "revoke", found.name.split()[1], "-c", file).returncode == 0
    assert serving.identity(text) is None
    assert call("token", "revoke", "none", "-c", file).returncode == 2
    assert call("token", "create", "--expires", "forever", "-c", file).returncode == 2


def test_a_user_by_command(tmp_path: Path) -> None:
    """GIVEN the command WHEN a user is added THEN it prints the lines for the settings file, which
    are valid, and has the password nowhere."""
    made = call("user", "add", "ann", "--role", "operator", stdin="correct horse\n")
    assert made.returncode == 0
    assert "correct horse" not in made.stdout
    file = tmp_path / "tailrace.yml"
    file.write_text(made.stdout)
    assert call("user", "ls", "-c", file).stdout == "ann  operator\n"
    assert call("user", "add", "ann", stdin="short\n").returncode == 2
    assert call("user", "add", "a b", stdin="correct horse\n").returncode == 2


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        ({}, ""),
        ({"host": "::1"}, ""),
        ({"host": "0.0.0.0"}, "http.users and http.tls"),
        ({"host": "10.0.0.7", "users": {"a": {"password": HASH}}}, "http.tls"),
        ({"host": "db.example", "tls": {"certificate": "c", "key": "k"}}, "http.users"),
        ({"host": "0.0.0.0", "insecure": True}, ""),
        ({"host": "0.0.0.0", "port": 0}, ""),
    ],
)
def test_beyond_loopback_users_and_tls_are_needed(values: dict[str, object], missing: str) -> None:
    http = Http.model_validate(values)
    if not missing:
        check_protection(http)
        return
    with pytest.raises(ConfigError, match=missing):
        check_protection(http)


def test_run_refuses_to_listen_beyond_loopback(tmp_path: Path) -> None:
    """GIVEN settings with another address WHEN run or serve starts THEN it ends with the hint,
    before anything listens."""
    file = tmp_path / "tailrace.yml"
    file.write_text("http: {host: 0.0.0.0, port: 19}\n")
    for command in (("run", file), ("serve", "-c", file)):
        # In a process of its own: the commands configure log lines for the whole process.
        refused = run(*command)
        assert refused.returncode == 2, refused.stderr
        assert "--insecure" in refused.stderr


def test_a_revoked_token_does_not_return(tmp_path: Path) -> None:
    """GIVEN tokens WHEN some are revoked while others are created THEN the former are gone and the
    latter are there."""
    lifetime = timedelta(days=1)
    for _ in range(20):
        Tokens(tmp_path).create("read", lifetime, user="ann")
    old = [each.id for each in Tokens(tmp_path).all()]

    def change(number: int) -> None:
        if number % 2:
            Tokens(tmp_path).create("read", lifetime, user="bob")
        else:
            Tokens(tmp_path).revoke(old[number // 2], user="bob")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(change, range(40)))
    left = {each.id for each in Tokens(tmp_path).all()}
    assert len(left) == 20
    assert not left & set(old)
