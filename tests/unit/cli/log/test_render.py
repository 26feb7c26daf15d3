"""Changes as JSON and as text: what is said, what is left out, what may not reach a terminal."""

from __future__ import annotations

import io
import json
import pickle
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tailrace.change import ABSENT, UNCHANGED, Binary, Change, Op, Row
from tailrace.cli.log.render import escape, json_line, render_text, render_transaction
from tailrace.errors import MalformedError
from tailrace.log.documents import to_json
from tailrace.position import Lsn, Position
from tailrace.schema import Column, Relation, ReplicaIdentity

ROW_OPS = (Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ)


def relation(*names: str, keys: int = 1, full: bool = False, table: str = "users") -> Relation:
    return Relation(
        oid=1,
        namespace="public",
        name=table,
        replica_identity=ReplicaIdentity.FULL if full else ReplicaIdentity.DEFAULT,
        columns=tuple(
            Column(name=name, type_oid=25, key=full or number < keys)
            for number, name in enumerate(names)
        ),
    )


USERS = relation("id", "name", "bio")
FULL = relation("id", "name", "bio", full=True)


def change(op: Op, table: Relation | None = USERS, **fields: Any) -> Change:
    return Change(
        position=Position(Lsn.parse("16/B374D848"), 2),
        op=op,
        xid=745,
        committed_at=datetime(2026, 1, 31, 12, 0, 0, 120, tzinfo=UTC),
        relation=table,
        **fields,
    )


def shown(found: Change, width: int | None = None) -> str:
    return render_text(found, width=width).plain


def test_an_insert_as_json() -> None:
    found = to_json(change(Op.INSERT, after=(b"7", "Zoë".encode(), None)))
    assert found == {
        "id": "00000016b374d848-2",
        "lsn": "16/B374D848",
        "ordinal": 2,
        "xid": 745,
        "committed_at": "2026-01-31T12:00:00.000120Z",
        "op": "insert",
        "schema": "public",
        "table": "users",
        "key": {"id": "7"},
        "before": None,
        "after": {"id": "7", "name": "Zoë", "bio": None},
        "unchanged": [],
    }


def test_what_postgres_did_not_send_is_never_null() -> None:
    update = to_json(
        change(Op.UPDATE, before=(b"7", ABSENT, ABSENT), after=(b"8", b"Zo", UNCHANGED))
    )
    assert update["key"] == {"id": "7"}
    assert update["before"] == {"id": "7"}
    assert update["after"] == {"id": "8", "name": "Zo"}
    assert update["unchanged"] == ["bio"]
    delete = to_json(change(Op.DELETE, before=(b"7", ABSENT, ABSENT)))
    assert delete["after"] is None
    assert delete["before"] == delete["key"] == {"id": "7"}


def test_keys_follow_the_replica_identity() -> None:
    row = (b"1", b"2", b"3")
    assert to_json(change(Op.INSERT, relation("a", "b", "c", keys=2), after=row))["key"] == {
        "a": "1",
        "b": "2",
    }
    assert to_json(change(Op.INSERT, relation("a", "b", "c", keys=0), after=row))["key"] == {}
    assert to_json(change(Op.DELETE, FULL, before=row))["key"] == {
        "id": "1",
        "name": "2",
        "bio": "3",
    }


def test_truncates_and_messages_as_json() -> None:
    truncate = to_json(change(Op.TRUNCATE, cascade=True))
    assert (truncate["cascade"], truncate["restart_identity"]) == (True, False)
    assert (truncate["key"], truncate["before"], truncate["after"]) == ({}, None, None)
    text = to_json(change(Op.MESSAGE, None, prefix="note", content="hej då".encode()))
    assert (text["prefix"], text["content"], text["content_encoding"]) == (
        "note",
        "hej då",
        "utf-8",
    )
    assert (text["schema"], text["table"]) == (None, None)
    binary = to_json(change(Op.MESSAGE, None, prefix="note", content=b"\xff\x00"))
    assert (binary["content"], binary["content_encoding"]) == ("/wA=", "base64")
    assert "prefix" not in truncate
    assert "cascade" not in text


def test_an_origin_is_named_only_where_there_is_one() -> None:
    assert to_json(change(Op.TRUNCATE, origin="north"))["origin"] == "north"
    assert "origin" not in to_json(change(Op.TRUNCATE))
    assert "origin north" in render_transaction(change(Op.TRUNCATE, origin="north")).plain


def test_bytes_that_are_not_utf8_are_shown_as_such() -> None:
    odd = change(Op.INSERT, after=(b"7", b"caf\xe9", Binary(b"\x01\xff")))
    assert to_json(odd)["after"] == {"id": "7", "name": "caf\\xe9", "bio": "\\x01ff"}
    assert shown(odd) == "INSERT   public.users  id: 7  name: caf\\xe9  bio: \\x01ff"


def test_a_row_of_another_shape_is_malformed() -> None:
    short = change(Op.INSERT, after=(b"7",))
    with pytest.raises(MalformedError, match="has 1 columns, its relation has 3"):
        to_json(short)
    with pytest.raises(MalformedError) as caught:
        render_text(short, width=80)
    assert pickle.loads(pickle.dumps(caught.value)).code == "MALFORMED"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            change(Op.INSERT, after=(b"7", b"Ada", None)),
            "INSERT   public.users  id: 7  name: Ada  bio: NULL",
        ),
        (
            change(Op.READ, after=(b"7", b"Ada", b"x")),
            "READ     public.users  id: 7  name: Ada  bio: x",
        ),
        (
            change(Op.UPDATE, after=(b"7", b"Ada", UNCHANGED)),
            "UPDATE   public.users  id: 7  name: Ada  bio: ⟨unchanged⟩",
        ),
        (
            change(Op.UPDATE, before=(b"7", ABSENT, ABSENT), after=(b"8", b"Ada", b"x")),
            "UPDATE   public.users  id: 7 → 8  name: Ada  bio: x",
        ),
        (
            change(Op.UPDATE, FULL, before=(b"7", None, b"x"), after=(b"7", b"Ada", b"x")),
            "UPDATE   public.users  id: 7  name: NULL → Ada",
        ),
        (
            change(Op.UPDATE, FULL, before=(b"7", b"A", b"x"), after=(b"7", b"A", b"x")),
            "UPDATE   public.users  id: 7  no column changed",
        ),
        (change(Op.DELETE, before=(b"7", ABSENT, ABSENT)), "DELETE   public.users  id: 7"),
        (change(Op.TRUNCATE), "TRUNCATE public.users"),
        (
            change(Op.TRUNCATE, cascade=True, restart_identity=True),
            "TRUNCATE public.users  CASCADE  RESTART IDENTITY",
        ),
        (
            change(Op.MESSAGE, None, prefix="note", content=b"hello there"),
            "MESSAGE  note  hello there",
        ),
    ],
    ids=lambda value: value.op.value if isinstance(value, Change) else "",
)
def test_one_line_shows_the_change(found: Change, words: str) -> None:
    assert shown(found) == words


def test_text_that_looks_like_something_else_is_quoted() -> None:
    found = change(Op.INSERT, after=(b"", b"NULL", b" padded"))
    assert shown(found) == "INSERT   public.users  id: ''  name: 'NULL'  bio: ' padded'"


def test_long_values_are_cut_and_measured() -> None:
    found = shown(change(Op.INSERT, after=(b"7", "é".encode() * 60, b"x" * 1_000_000)))
    assert f"name: {'é' * 60}  bio" in found
    assert found.endswith(f"bio: {'x' * 60}… (1,000,000 bytes)")
    assert "\\x" not in shown(change(Op.INSERT, after=(b"7", "a🎁".encode() * 500, None)))


def test_a_header_shows_the_transaction() -> None:
    assert (
        render_transaction(change(Op.TRUNCATE)).plain
        == "── 2026-01-31 12:00:00.000120Z · xid 745 · 16/B374D848"
    )
    loose = Change(
        position=Position(Lsn(5)),
        op=Op.MESSAGE,
        xid=0,
        committed_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    assert "outside any transaction" in render_transaction(loose).plain


def test_lines_fit_the_width_and_do_not_go_on_for_ever() -> None:
    names = [f"column_{number}" for number in range(200)]
    wide = change(Op.INSERT, relation(*names), after=tuple(b"value" for _ in names))
    lines = shown(wide, width=80).split("\n")
    assert len(lines) == 6
    assert all(len(line) <= 80 for line in lines[:-1])
    count = re.search(r"… (\d+) more$", lines[-1])
    assert count is not None
    assert sum(line.count("value") for line in lines) + int(count[1]) == 200
    assert "\n" not in shown(wide)


@pytest.mark.parametrize(
    ("op", "colour"),
    [
        (Op.INSERT, "32"),
        (Op.UPDATE, "33"),
        (Op.DELETE, "31"),
        (Op.TRUNCATE, "35"),
        (Op.MESSAGE, "36"),
        (Op.READ, "34"),
    ],
)
def test_colours_go_by_operation(op: Op, colour: str) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard", width=200)
    row: Row | None = (b"1", b"2", b"3") if op in ROW_OPS else None
    found = change(op, before=row if op is Op.DELETE else None, after=row)
    console.print(render_text(found, width=None))
    assert f"\x1b[1;{colour}m{op.name}" in out.getvalue()


HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]x[/red]\x9b31m\u202egnp\u2028\r\n\x00\x7f"
SAFE = r"\x1b[2J\x1b]0;owned\x07[red]x[/red]\x9b31m\u202egnp\u2028\r\n\x00\x7f"  # as people see it


def test_nothing_in_the_data_reaches_the_terminal_as_a_command() -> None:
    assert escape(HOSTILE) == SAFE
    out = io.StringIO()
    console = Console(file=out, highlight=False, soft_wrap=True, color_system=None)
    hostile = relation(HOSTILE, table=HOSTILE)
    for found in (
        change(Op.INSERT, hostile, after=(HOSTILE.encode(),)),
        change(Op.DELETE, hostile, before=(HOSTILE.encode(),)),
        change(Op.UPDATE, hostile, before=(b"",), after=(HOSTILE.encode(),)),
        change(Op.TRUNCATE, hostile, origin=HOSTILE),
        change(Op.MESSAGE, None, prefix=HOSTILE, content=HOSTILE.encode()),
    ):
        console.print(render_transaction(found))
        console.print(render_text(found, width=None))
    written = out.getvalue()
    assert written.count("\n") == 10
    assert not set(HOSTILE) & set("\x1b\x07\x9b\u202e\u2028\r\x00\x7f") & set(written)
    assert written.count(SAFE) >= 9


def test_json_lines_are_safe_to_look_at_and_read_back_the_same() -> None:
    for found in (
        change(Op.INSERT, relation(HOSTILE), after=(HOSTILE.encode(),)),
        change(Op.MESSAGE, None, prefix=HOSTILE, content=HOSTILE.encode()),
    ):
        line = json_line(found)
        assert not set("\x1b\x07\x9b\u202e\u2028\r\n\x00\x7f") & set(line)
        assert json.loads(line) == to_json(found)
    assert "Zoë" in json_line(change(Op.INSERT, after=(b"1", "Zoë".encode(), None)))


VALUES = st.one_of(
    st.none(),
    st.just(UNCHANGED),
    st.binary(max_size=300),
    st.text(max_size=300).map(str.encode),
    st.binary(max_size=8).map(Binary),
)


@given(values=st.tuples(VALUES, VALUES, VALUES), olds=st.tuples(VALUES, VALUES, VALUES))
def test_any_value_can_be_shown(values: Row, olds: Row) -> None:
    found = change(Op.UPDATE, FULL, before=olds, after=values)
    text = shown(found, width=40)
    assert escape(text.replace("\n", "")) == text.replace("\n", "")
    assert json.loads(json_line(found)) == to_json(found)
