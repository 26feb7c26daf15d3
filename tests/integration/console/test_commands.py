"""Commands with `--at`: a real server of the console answers what the files do."""

from __future__ import annotations

import getpass
import json
import re
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.access.tokens import Tokens
from tailrace.backfill.order import Order
from tailrace.control import ControlFile, Moved
from tailrace.log import retention
from tailrace.log.store import LocalStore
from tailrace.parking.order import Orders
from tailrace.parking.parking import folder_of
from tailrace.run import status
from tests.command import call
from tests.integration.console.serving import serving
from tests.unit.console.house import RUNNING, TOKEN, House
from tests.waiting import wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

API_UNREACHABLE, API_REFUSED, BAD_CONFIG = 50, 51, 2


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Status files are written once."""
    monkeypatch.setattr(status, "STALE_S", 3600.0)
    monkeypatch.setenv("COLUMNS", "200")


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """A data folder that commands read as files."""

    house: House
    file: Path

    def call(self, *words: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return call(*words, "--config", self.file, stdin=stdin)


@dataclass(frozen=True, slots=True, kw_only=True)
class There:
    """A data folder that a server shows."""

    house: House
    url: str
    token: Path

    def call(self, *words: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return call(*words, "--at", self.url, "--token-file", self.token, stdin=stdin)


def furnished(folder: Path) -> House:
    """Three parked messages, a running backfill, and a pin of a reader that is gone."""
    house = House(folder)
    house.write(RUNNING)
    house.park()
    house.folder.delivered(house.folder.positions[5])
    store = LocalStore(house.config.log.path)
    # In the future: its age is 0 in every listing.
    retention.pin(store, "gone", house.folder.positions[2], now=time.time() + 3600)
    return house


@pytest.fixture
def here(tmp_path: Path) -> Here:
    house = furnished(tmp_path / "here" / "data")
    file = tmp_path / "here" / "tailrace.yml"
    file.write_text(json.dumps(house.folder.settings))
    return Here(house=house, file=file)


@pytest.fixture
def there(tmp_path: Path) -> Iterator[There]:
    """With a token of scope operate."""
    house = furnished(tmp_path / "there" / "data")
    with serving(house) as url:
        yield There(house=house, url=url, token=token(house, tmp_path, "operate"))


def token(house: House, folder: Path, scope: Any) -> Path:
    file = folder / f"{scope}.token"
    secret = Tokens(house.data).create(scope, timedelta(hours=1), user="test")
    file.write_text(f"{secret}\n")
    return file


def same(here: Here, there: There, *words: object, stdin: str = "") -> str:
    """The output of a command, which is the same both ways but for ids that are times."""
    done = [each.call(*words, stdin=stdin) for each in (here, there)]
    outputs = [
        (each.returncode, re.sub(r"\d{13,}", "TIME", each.stdout), each.stderr) for each in done
    ]
    assert outputs[0] == outputs[1], words
    assert done[0].returncode == 0, done[0].stderr
    return done[0].stdout


READS: tuple[tuple[tuple[object, ...], str], ...] = (
    (("pipeline", "ls"), "0/1832C00.4"),
    (("parked", "ls", "shop"), "3 parked"),
    (("parked", "ls", "shop", "--limit", 2), "More: --after 2"),
    (("parked", "ls", "shop", "--id", "b1", "--id", "a1", "--json"), '"b1"'),
    (("parked", "ls", "shop", "--key", "a", "--code", "HTTP_422"), "a1"),
    (("parked", "show", "shop", "b1"), "payload of b1"),
    (("parked", "show", "shop", "1"), "payload of a1"),
    (("parked", "export", "shop", "--key", "a"), ""),
    (("parked", "orders", "shop", "--json"), "[]"),
    (("backfills",), "backfill"),
    (("backfills", "--json"), "[]"),
    (("log", "pins"), "gone"),
    (("log", "pins", "--json"), '"gone"'),
)


@pytest.mark.parametrize(("words", "shown"), READS, ids=lambda each: " ".join(map(str, each)))
def test_what_is_read_is_the_same_both_ways(
    here: Here, there: There, tmp_path: Path, words: tuple[object, ...], shown: str
) -> None:
    """GIVEN equal systems, one as files, one with a server WHEN a command reads THEN both
    outputs are the same, and a token that may only read is enough."""
    reader = There(house=there.house, url=there.url, token=token(there.house, tmp_path, "read"))
    if "export" in words:
        words = (*words, "--to", tmp_path / "parked.jsonl")
    assert shown in same(here, reader, *words)
    if "export" in words:
        lines = (tmp_path / "parked.jsonl").read_text().splitlines()
        assert [json.loads(line)["payload"] for line in lines] == ["payload of a1", "payload of a2"]


def test_a_large_payload_arrives_whole(there: There) -> None:
    """GIVEN a message larger than what a page shows THEN show and export write all of it."""
    folder = folder_of(there.house.data, "shop")
    large = "x" * 200_000
    _parked_payload(folder, large)
    done = there.call("parked", "show", "shop", "1")
    assert json.loads(done.stdout)["payload"] == large


def _parked_payload(folder: Path, payload: str) -> None:
    import sqlite3  # noqa: PLC0415

    [file] = folder.rglob("*.db")
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE payloads SET payload = ? WHERE seq = 1", (payload.encode(),))
    connection.close()


def test_actions_do_the_same_both_ways(here: Here, there: There) -> None:
    """GIVEN equal systems WHEN an operator acts on each THEN outputs, orders and entries of the
    audit file are the same; the entry names the user here, and the token there."""
    end = here.house.folder.positions[-1]
    for each in (here, there):
        # No pipelines run: nothing waits for them.
        (status.folder(each.house.data) / "pipelines.json").unlink()
    assert "takes effect when" in same(here, there, "pipeline", "pause", "shop", "--reason", "x")
    assert there.call("pipeline", "ls").stdout.split()[-4:-1] == ["0", "x", "(token"]
    same(here, there, "pipeline", "resume", "shop")
    same(here, there, "pipeline", "restart", "shop")
    moved = same(here, there, "pipeline", "rewind", "shop", "--to", "earliest", "--yes")
    assert "are delivered again" in moved
    same(here, there, "pipeline", "skip", "shop", str(end), stdin="y\n")
    same(here, there, "parked", "retry", "shop", "--id", "a1", "--id", "b1")
    same(here, there, "parked", "drop", "shop", "--key", "a", stdin="y\n")
    same(here, there, "backfill", "shop", "public.t", "--where", "id > 5", "--rate", 10)
    for action in ("pause", "resume", "cancel"):
        for each in (here, there):
            [order] = Order.load(each.house.data / "backfills" / "shop")
            done = each.call("backfills", action, order.id)
            assert done.stdout == f"{order.id}: {'run' if action == 'resume' else action}\n"
    assert "no pin any more" in same(here, there, "log", "unpin", "gone", "--yes")
    for each in (here, there):
        control = ControlFile(each.house.data, "shop").read()
        assert (control.paused, control.restarts, control.moves) == (False, 1, 2)
        orders = Orders(folder_of(each.house.data, "shop") / "orders").all()
        assert [order.action for order in orders] == ["retry", "drop"]
        assert "gone" not in retention.read_pins(LocalStore(each.house.config.log.path))
    entries = [
        [json.loads(line) for line in each.house.audit().splitlines()] for each in (here, there)
    ]
    users = [{entry.pop("user") for entry in found if "token" not in entry} for found in entries]
    assert users[0] == {getpass.getuser()}
    [user] = users[1]
    assert user.startswith("token ")
    acted = [
        [
            {
                name: value
                for name, value in entry.items()
                if name not in ("at", "order", "backfill")
            }
            for entry in found
            if entry["action"] != "token.create"
        ]
        for found in entries
    ]
    assert acted[0] == acted[1]
    assert len(acted[0]) == 13 - 1


@pytest.mark.parametrize(
    "words",
    [
        ("pipeline", "pause", "shop"),
        ("pipeline", "resume", "shop"),
        ("pipeline", "restart", "shop"),
        ("pipeline", "rewind", "shop", "--to", "earliest", "--yes"),
        ("pipeline", "skip", "shop", "now", "--yes"),
        ("parked", "retry", "shop", "--all"),
        ("parked", "drop", "shop", "--all", "--yes"),
        ("backfill", "shop", "public.t"),
        ("backfills", "cancel", "fill-1"),
        ("log", "unpin", "gone", "--yes"),
    ],
    ids=" ".join,
)
def test_a_token_that_may_only_read_changes_nothing(
    there: There, tmp_path: Path, words: tuple[str, ...]
) -> None:
    reader = There(house=there.house, url=there.url, token=token(there.house, tmp_path, "read"))
    before = there.house.audit()
    done = reader.call(*words)
    assert done.returncode == API_REFUSED, done.stderr
    assert "may only read" in done.stderr
    assert "tailrace token create --scope operate" in done.stderr
    assert there.house.audit() == before
    assert "gone" in retention.read_pins(LocalStore(there.house.config.log.path))


@pytest.mark.parametrize("refusal", ["", "a backfill is not finished"])
def test_a_move_waits_for_the_runner(there: There, refusal: str) -> None:
    """GIVEN pipelines that run WHEN one is moved THEN the command ends when the runner has moved
    it, or with the reason why it has not."""
    control = ControlFile(there.house.data, "shop")

    def run() -> None:
        wait_for(lambda: control.read().moves == 1, "the order")
        control.note_moved(Moved(moves=1, refusal=refusal))

    runner = threading.Thread(target=run)
    runner.start()
    done = there.call("pipeline", "rewind", "shop", "--to", "earliest", "--yes")
    runner.join()
    if refusal:
        assert (done.returncode, refusal in done.stderr) == (BAD_CONFIG, True)
    else:
        assert "shop continues after" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "words",
    [
        ("pipeline", "pause", "none"),
        ("pipeline", "skip", "shop", "earliest", "--yes"),
        ("pipeline", "rewind", "shop", "--to", "some time", "--yes"),
        ("parked", "ls", "none"),
        ("parked", "show", "shop", "none"),
        ("parked", "retry", "shop", "--key", "none"),
        ("parked", "retry", "shop"),
        ("backfill", "none", "t"),
        ("backfills", "pause", "none"),
        ("log", "unpin", "none", "--yes"),
    ],
    ids=" ".join,
)
def test_errors_are_the_same_both_ways(here: Here, there: There, words: tuple[str, ...]) -> None:
    """Code, text, hint and exit code."""
    found = [each.call(*words) for each in (here, there)]
    assert found[0].returncode != 0
    assert (found[0].returncode, found[0].stderr) == (found[1].returncode, found[1].stderr)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("pipeline", "try", "shop"), "try"),
        (("table", "add", "tailrace.yml", "t"), "add"),
        (("table", "remove", "tailrace.yml", "t"), "remove"),
    ],
)
def test_commands_for_one_machine_say_so(
    there: There, words: tuple[str, ...], command: str
) -> None:
    done = call(*words, "--at", there.url)
    assert done.returncode == BAD_CONFIG
    assert "Run it on that machine" in done.stderr
    assert "--at" not in call(*words[:2], "--help").stdout


# Errors of the connection


def fails(code: int, text: str, *words: object) -> str:
    done = call("parked", "ls", "shop", *words)
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert "hint: " in done.stderr
    return done.stderr


def test_a_missing_or_wrong_token_is_named(there: There, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("0123456789abcdef-wrong\n")
    assert "token create" in fails(API_REFUSED, "needs a token", "--at", there.url)
    shown = fails(API_REFUSED, "does not accept", "--at", there.url, "--token-file", wrong)
    assert "expired" in shown
    assert "wrong" not in shown.replace(str(wrong), "")
    wrong.write_text("")
    done = call("parked", "ls", "shop", "--at", there.url, "--token-file", wrong)
    assert "is empty" in done.stderr


def test_the_token_of_the_endpoints_is_an_operator(there: There) -> None:
    done = call("pipeline", "pause", "shop", "--at", there.url, "--token", TOKEN)
    assert done.returncode == 0, done.stderr
    assert ControlFile(there.house.data, "shop").read().paused


def test_help_says_where_a_token_is_safe() -> None:
    shown = " ".join(call("pipeline", "pause", "--help").stdout.split())
    for text in ("TAILRACE_TOKEN", "--token-file", "--ca", "TAILRACE_AT"):
        assert text in shown


def test_an_address_without_a_console_is_named(there: There) -> None:
    where = ("--token-file", there.token)
    fails(API_REFUSED, "Check --at", "--at", f"{there.url}/elsewhere", *where)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    shown = fails(API_UNREACHABLE, "no answer from", "--at", f"http://127.0.0.1:{port}", *where)
    assert "tailrace run" in shown
    with other_server() as url:
        fails(API_REFUSED, "HTTP 302", "--at", url, *where)


@contextmanager
def other_server() -> Iterator[str]:
    """A server that redirects to another one, and fails the test if the token reaches that."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert not self.path.startswith("/stolen")
            self.send_response(302)
            self.send_header("location", "/stolen")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    "url",
    [
        "db1:9090",
        "ftp://db1",
        "http://",
        "https://ann:secret@db1",
        "http://db1?x=1",
        "http://db1:x",
    ],
)
def test_an_address_is_checked(url: str) -> None:
    done = call("pipeline", "ls", "--at", url)
    assert (done.returncode, "--at must be an address" in done.stderr) == (BAD_CONFIG, True)
    assert "secret" not in done.stderr


def test_a_token_is_not_sent_in_the_clear_beyond_this_machine(there: There) -> None:
    shown = fails(
        BAD_CONFIG, "without TLS", "--at", "http://db1.invalid:9090", "--token-file", there.token
    )
    assert "--insecure" in shown


def test_tls_is_checked(there: There, certificates: Path) -> None:
    """GIVEN a server with TLS WHEN its certificate, name or scheme does not fit THEN the error says
    which, and with the right authority the command works."""
    where = ("--token-file", there.token)
    with serving(there.house, certificate=certificates / "named.pem") as url:
        named = url.replace("127.0.0.1", "localhost")
        assert "--ca" in fails(
            API_UNREACHABLE, "certificate is not accepted", "--at", named, *where
        )
        other = ("--ca", certificates / "other.crt")
        fails(API_UNREACHABLE, "certificate is not accepted", "--at", named, *where, *other)
        trusted = ("--ca", certificates / "ca.crt")
        shown = fails(API_UNREACHABLE, "not accepted", "--at", url, *where, *trusted)
        assert "a name that the certificate has" in shown
        plain = url.replace("https", "http")
        assert "https://" in fails(API_UNREACHABLE, "has closed", "--at", plain, *where)
        done = call("parked", "ls", "shop", "--at", named, *where, *trusted)
        assert "3 parked" in done.stdout, done.stderr
    secure = there.url.replace("http", "https")
    assert "http://" in fails(API_UNREACHABLE, "no TLS connection", "--at", secure, *where)
    done = call("pipeline", "ls", "--at", secure, "--ca", there.token)
    assert (done.returncode, "cannot read" in done.stderr) == (BAD_CONFIG, True)
