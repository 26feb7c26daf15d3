"""Conditions on the rows of one table, as operators write them for backfills.

A condition comes from an HTTP request, a command or the settings file, and PostgreSQL evaluates it
with the privileges of the source's role. That role may drop slots and may end sessions of others,
and `READ ONLY` prevents neither `pg_drop_replication_slot(...)` nor `pg_terminate_backend(...)`. So
a condition is a part of SQL: columns of the table, literals, and the operators, functions and types
listed here.

The expressions of pipelines (`tailrace.pipeline.expressions`) are not used: they are checked and
rendered as Spark SQL, over changes instead of rows. A translation would change the meaning of
escapes, casts and divisions without notice, and PostgreSQL must evaluate the condition to use its
indexes.

`checked` reads tokens, not a grammar. PostgreSQL still parses the result and resolves the columns.
These rules keep everything else out:

| rule                                                          | refuses                         |
|---------------------------------------------------------------|---------------------------------|
| no `.`, `;`, `$` or comment; blanks between tokens            | statements, qualified names     |
| a word before `(` is a keyword, function or type of the lists | `pg_terminate_backend(1)`       |
| a word after `::` or AS, or before a string, is a type listed | `'x'::regclass`, `regproc 'x'`  |
| no SELECT, TABLE, UNION, LIMIT ... outside double quotes      | subqueries, further clauses     |
| parentheses are balanced                                      | `true) OR (true`                |

The reading session has an empty `search_path`, so functions and types can only be those of
`pg_catalog`, and `standard_conforming_strings` is on, so a backslash in a string is an ordinary
character (`tailrace.postgres.connection`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_CHARACTERS = 20_000
_HINT = (
    "Write a condition on the columns of the table, as after WHERE. Subqueries, comments and most "
    "functions are not allowed; docs/guides/backfills.md lists what is."
)

_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\n\f\v]+)
    | (?P<string>'(?:[^'\0\ud800-\udfff]|'')*')
    | (?P<name>"(?:[^"\0\ud800-\udfff]|"")+")
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<word>[A-Za-z_\x80-\ud7ff\ue000-\U0010ffff][A-Za-z0-9_$\x80-\ud7ff\ue000-\U0010ffff]*)
    | (?P<operator>[-+*/<>=~!@\#%^&|?]+)
    | (?P<cast>::)
    | (?P<mark>[](),[])
    """,
    re.VERBOSE,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPERATORS = _words(
    "= <> != < <= > >= + - * / % ^ || & | # << >> ~ ~* !~ !~* @> <@ && -> ->> #> #>> ? ?| ?&"
)
FUNCTIONS = _words(
    "abs age array_length btrim cardinality cast ceil ceiling char_length coalesce date_bin "
    "date_part date_trunc extract floor greatest isfinite jsonb_array_length jsonb_typeof "
    "json_array_length json_typeof least left length lower ltrim make_date make_interval "
    "make_timestamp make_timestamptz md5 mod now nullif octet_length position right round rtrim "
    "sign split_part starts_with strpos substr substring to_date to_number to_timestamp trim trunc "
    "upper"
)
TYPES = _words(
    "bigint bit bool boolean bpchar bytea char character cidr date decimal double float float4 "
    "float8 inet int int2 int4 int8 integer interval json jsonb macaddr money numeric oid pg_lsn "
    "real smallint text time timestamp timestamptz timetz uuid varchar"
)
_KEYWORDS = _words(
    "all and any between case distinct else end escape false from ilike in is isnull like not "
    "notnull null or precision similar some symmetric then to true when zone"
)
_CLAUSES = _words(
    "except fetch for group having intersect into limit offset order returning select table union "
    "window with"
)
"""Words that begin a query or another clause. A column of this name needs double quotes."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str

    @property
    def word(self) -> str:
        """The folded word; empty for other tokens. PostgreSQL's keywords are ASCII."""
        return self.text.lower() if self.kind == "word" and self.text.isascii() else ""


def checked(condition: str) -> str:
    """The condition as SQL for PostgreSQL; empty for an empty one. Refuses what is not allowed.

    >>> checked("placed_at>'2026-01-01' AND total=-1")
    "placed_at > '2026-01-01' AND total = - 1"
    """
    tokens = _tokens(condition)
    _check_brackets(tokens)
    for index, token in enumerate(tokens):
        before = tokens[index - 1] if index else None
        after = tokens[index + 1] if index + 1 < len(tokens) else None
        if token.kind in {"word", "name"}:
            _check_name(token, before, after)
    return " ".join(token.text for token in tokens)


def _tokens(condition: str) -> list[_Token]:
    if len(condition) > MAX_CHARACTERS:
        _refuse(f"it may have at most {MAX_CHARACTERS:,} characters")
    tokens: list[_Token] = []
    at = 0
    while at < len(condition):
        match = _TOKEN.match(condition, at)
        if match is None:
            _refuse(f"unexpected {condition[at]!r}")
        at = match.end()
        kind, text = match.lastgroup or "", match[0]
        if kind == "operator":
            tokens += _operators(text)
        elif kind != "space":
            tokens.append(_Token(kind, text))
    return tokens


def _operators(text: str) -> list[_Token]:
    """One operator, or an operator and a sign: `=-` is `=` and `-`, as in PostgreSQL."""
    if "--" in text or "/*" in text:
        _refuse("comments are not allowed")
    parts = [text]
    if text not in OPERATORS and text[-1] in "+-":
        parts = [text[:-1], text[-1]]
    if parts[0] not in OPERATORS:
        _refuse(f"the operator {text} is not allowed")
    return [_Token("operator", part) for part in parts]


def _check_brackets(tokens: Sequence[_Token]) -> None:
    pairs = {")": "(", "]": "["}
    opened: list[str] = []
    for token in tokens:
        if token.text in pairs.values():
            opened.append(token.text)
        elif token.text in pairs and (not opened or opened.pop() != pairs[token.text]):
            _refuse(f"{token.text} without {pairs[token.text]}")
    if opened:
        _refuse(f"{opened[-1]} is not closed")


def _check_name(token: _Token, before: _Token | None, after: _Token | None) -> None:
    word = token.word
    if word in _CLAUSES:
        _refuse(f"{token.text} is not allowed")
    if before is not None and (before.kind == "cast" or before.word == "as"):
        if word not in TYPES:
            _refuse(f"a cast to {token.text} is not allowed")
    elif after is not None and after.kind == "string":
        if word not in TYPES | _KEYWORDS:
            _refuse(f"{token.text} before a string is not allowed")
    elif after is not None and after.text == "(" and word not in FUNCTIONS | TYPES | _KEYWORDS:
        _refuse(f"the function {token.text}() is not allowed")


def _refuse(reason: str) -> NoReturn:
    # Without the condition: it may come from the settings, whose values are never shown.
    raise ConfigError(f"invalid condition: {reason}", hint=_HINT)
