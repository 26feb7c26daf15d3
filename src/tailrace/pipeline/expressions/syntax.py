"""From the text of an expression to a syntax tree, with sqlglot as the parser.

sqlglot reads many dialects and whole statements, and rewrites as it reads: functions become its
own nodes, `'it''s'` two strings, `CASE` without THEN is let through. Here it gets less to decide.
Every word that the small language of expressions has no use for is handed over as a plain name, so
no statement is ever parsed, and every function call arrives as it was written. Strings are read by
the rules of Spark, from the text itself.

Nothing is allowed or forbidden here beyond what can not be parsed without doubt; the allow-list is
`tailrace.pipeline.expressions.render`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NoReturn

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.parser import Parser
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from tailrace.errors import ExpressionError

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST = 20_000
_NESTED = 32
_DEEPEST = 100


class _Dialect(Spark):
    """Spark's tokens and operators, without functions, lambdas or JSON arrows."""

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES: ClassVar = ["'", "\\"]

    class Parser(SparkParser):
        STRICT_CAST: ClassVar = True
        COLON_IS_VARIANT_EXTRACT: ClassVar = True
        FUNCTIONS: ClassVar = {}
        LAMBDAS: ClassVar = {}
        NO_PAREN_FUNCTIONS: ClassVar = {}
        FUNCTION_PARSERS: ClassVar = {
            name: Parser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST", "EXTRACT")
        }
        NO_PAREN_FUNCTION_PARSERS: ClassVar = {"CASE": Parser.NO_PAREN_FUNCTION_PARSERS["CASE"]}


_T = TokenType
_WORDS = {
    *(_T.AND, _T.OR, _T.NOT, _T.IN, _T.IS, _T.NULL, _T.TRUE, _T.FALSE, _T.BETWEEN, _T.LIKE),
    *(_T.ILIKE, _T.RLIKE, _T.ESCAPE, _T.CASE, _T.WHEN, _T.THEN, _T.ELSE, _T.END, _T.ALIAS),
    *(_T.DISTINCT, _T.FROM, _T.DIV, _T.VAR),
}
"""Words that keep their meaning. Any other word is a name."""

_REFUSED = {
    _T.PARAMETER: "session variables and ${...} are not read in expressions",
    _T.PLACEHOLDER: "parameters are not read in expressions",
    _T.SEMICOLON: "an expression is one expression, without a semicolon",
    _T.ARROW: "lambdas are not allowed",
    _T.FARROW: "arguments have no names here",
    _T.L_BRACE: "braces are not allowed",
    _T.HINT: "hints are not allowed",
    _T.BLOCK_START: "braces are not allowed",
    _T.L_BRACKET: "brackets are only read in a JSON path; use element_at(...)",
}
_QUERY = {"SELECT", "WITH", "FROM", "VALUES", "TABLE"}
_STATEMENT = {
    *("SELECT", "WITH", "VALUES", "INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "DROP", "ALTER"),
    *("SET", "RESET", "USE", "ADD", "CACHE", "EXPLAIN", "CALL", "EXECUTE", "DECLARE", "SHOW"),
    *("DESCRIBE", "REFRESH", "ANALYZE", "TRUNCATE", "LOAD", "MSCK", "UNCACHE"),
}


@dataclass(frozen=True, slots=True)
class Text:
    """The text of one expression and the setting it comes from, such as `pipelines.paid.where`."""

    place: str
    sql: str

    def refuse(self, offset: int, reason: str, *, hint: str = "") -> NoReturn:
        """Raise the error for what stands at `offset`."""
        line = self.sql.count("\n", 0, offset) + 1
        column = offset - self.sql.rfind("\n", 0, offset)
        raise ExpressionError(f"{self.place}, line {line}, column {column}: {reason}", hint=hint)


def parse(text: Text, *, named: bool = False) -> exp.Expr:
    """The tree of one expression; with `named`, `AS name` may follow it."""
    if len(text.sql) > _LONGEST:
        text.refuse(_LONGEST, f"an expression has at most {_LONGEST} characters")
    dialect = _Dialect()
    try:
        tokens = dialect.tokenize(text.sql)
    except SqlglotError:
        text.refuse(len(text.sql), "a string, name or comment is not closed")
    if not tokens:
        text.refuse(0, "there is no expression")
    _no_hints(text, tokens)
    _not_too_nested(text, tokens)
    tokens = [_plain(text, tokens, index) for index in range(len(tokens))]
    _case_is_whole(text, tokens)
    try:
        (tree,) = dialect.parser().parse_into(
            exp.Expr if named else exp.Condition, tokens, text.sql
        )
    except ParseError as error:
        _not_sql(text, tokens, error)
    except (RecursionError, SqlglotError, ValueError):
        text.refuse(0, "the expression can not be read")
    if tree is None:
        text.refuse(0, "there is no expression")
    if named and isinstance(tree, exp.Alias):
        _as_is_written(text, tokens, tree)
    _not_too_deep(text, tree)
    return tree


def offset(node: exp.Expr) -> int:
    """Where a node begins in its text; a node without a place of its own begins with a child."""
    found = [part.meta["start"] for part in node.walk() if "start" in part.meta]
    return min(found, default=0)


def _no_hints(text: Text, tokens: Sequence[Token]) -> None:
    """sqlglot reads most hints as comments; saying so beats dropping what somebody relies on."""
    end = 0
    for start, following in [(t.start, t.end + 1) for t in tokens] + [(len(text.sql), 0)]:
        gap = text.sql.find("/*+", end, start)
        if gap >= 0:
            text.refuse(gap, "hints are not allowed")
        end = following


def _not_too_nested(text: Text, tokens: Sequence[Token]) -> None:
    """sqlglot goes some twenty calls down for each, and Python has an end."""
    level = 0
    for token in tokens:
        level += token.token_type in (_T.L_PAREN, _T.CASE, _T.L_BRACKET)
        level -= token.token_type in (_T.R_PAREN, _T.END, _T.R_BRACKET)
        if level > _NESTED:
            text.refuse(token.start, f"more than {_NESTED} levels are inside one another")


def _plain(text: Text, tokens: Sequence[Token], index: int) -> Token:
    token = tokens[index]
    before = tokens[index - 1] if index else None
    after = tokens[index + 1] if index + 1 < len(tokens) else None
    raw = text.sql[token.start : token.end + 1]
    if token.token_type in (_T.STRING, _T.RAW_STRING):
        return _copy(token, _T.STRING, _string(text, token.start, raw))
    if token.token_type in (_T.HEX_STRING, _T.BIT_STRING, _T.BYTE_STRING):
        if raw[:2] not in ("x'", "X'"):
            text.refuse(token.start, f"{raw} is not read; bytes are written X'...'")
        return token
    if token.token_type is _T.L_BRACKET and _in_path(tokens, index):
        return token
    if reason := _REFUSED.get(token.token_type):
        text.refuse(token.start, reason)
    if token.token_type is _T.IDENTIFIER:
        return token
    if "'" in raw:
        text.refuse(token.start, f"{raw} is not read; text is written '...'")
    if not re.fullmatch(r"[^\W\d]\w*", raw):
        return token
    return _word(text, token, raw, before, after)


def _in_path(tokens: Sequence[Token], index: int) -> bool:
    """Whether a bracket stands in `doc:a[0].b`, as far back as the path's colon."""
    for token in reversed(tokens[:index]):
        if token.token_type is _T.COLON:
            return True
        if token.token_type not in (_T.VAR, _T.IDENTIFIER, _T.DOT, _T.L_BRACKET, _T.R_BRACKET) and (
            token.token_type not in (_T.NUMBER, _T.STRING)
        ):
            return False
    return False


def _word(text: Text, token: Token, raw: str, before: Token | None, after: Token | None) -> Token:
    """A keyword of the small language, the name of a type, or a name."""
    word = raw.upper()
    opened = before is None or before.token_type is _T.L_PAREN
    starts = after is not None and after.token_type not in (_T.R_PAREN, _T.COMMA)
    if before is None and word in _STATEMENT and after is not None and _continues(after):
        text.refuse(token.start, "statements are not allowed: write one expression")
    if opened and word in _QUERY and starts and after is not None and _continues(after):
        text.refuse(token.start, "subqueries are not allowed")
    if before is not None and before.token_type is _T.DOT:
        return _copy(token, _T.VAR, raw)
    if token.token_type in _WORDS:
        return token
    if before is not None and before.token_type in (_T.ALIAS, _T.DCOLON):
        return token
    if after is not None and after.token_type in (_T.STRING, _T.RAW_STRING):
        return token
    if token.token_type is _T.INTERVAL and after is not None and after.token_type is _T.NUMBER:
        return token
    return _copy(token, _T.VAR, raw)


def _continues(token: Token) -> bool:
    """Whether what follows a word makes it a statement's beginning rather than an operand."""
    operand = {_T.NUMBER, _T.STRING, _T.STAR, _T.IDENTIFIER, _T.L_PAREN}
    return token.token_type in operand or (
        token.token_type not in _WORDS - {_T.VAR, _T.CASE, _T.NULL, _T.TRUE, _T.FALSE, _T.DISTINCT}
        and re.match(r"[^\W\d]", token.text) is not None
    )


def _copy(token: Token, kind: TokenType, value: str) -> Token:
    return Token(kind, value, token.line, token.col, token.start, token.end)


def _string(text: Text, start: int, raw: str) -> str:
    if raw[:1] in "rR":
        if raw[1] == '"':
            _double(text, start)
        return raw[2:-1]
    if raw[:1] == '"':
        _double(text, start)
    if raw[:1] != "'":
        text.refuse(start, f"{raw} is not read; text is written '...'")
    value = _ESCAPE.sub(_unescaped, raw[1:-1])
    try:
        # Two \u escapes may spell one character, as in Java.
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        text.refuse(start, "half of a surrogate pair is not a character")


def _double(text: Text, start: int) -> NoReturn:
    text.refuse(
        start,
        "double quotes are text in Spark and names in PostgreSQL, so they are not read",
        hint="Write text as '...' and odd names as `...`.",
    )


_ESCAPE = re.compile(r"''|\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-3][0-7]{2}|.)", re.DOTALL)
_LETTERS = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}


def _unescaped(match: re.Match[str]) -> str:
    """One escape by Spark's rules. The pattern characters keep their backslash, for LIKE."""
    body = match[1]
    if body is None:
        return "'"
    if len(body) == 1:
        return "\\" + body if body in "%_" else _LETTERS.get(body, body)
    code = int(body[1:], 16) if body[0] in "uU" else int(body, 8)
    return chr(code) if code < 0x110000 else "\ufffd"


def _case_is_whole(text: Text, tokens: Sequence[Token]) -> None:
    """sqlglot does not insist on THEN."""
    whens = [token for token in tokens if token.token_type is _T.WHEN]
    if len(whens) != sum(token.token_type is _T.THEN for token in tokens):
        text.refuse(whens[0].start if whens else 0, "every WHEN needs its THEN")


def _as_is_written(text: Text, tokens: Sequence[Token], tree: exp.Alias) -> None:
    """`a b` is more often a forgotten operator than a name."""
    name = tree.args.get("alias")
    start = offset(name) if isinstance(name, exp.Expr) else len(text.sql)
    words = [token for token in tokens if token.start < start]
    if not words or words[-1].token_type is not _T.ALIAS:
        text.refuse(start, "write AS before a name")


def _not_too_deep(text: Text, tree: exp.Expr) -> None:
    """Chains of AND and OR count as one level: they are rendered flat."""
    level = [tree]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    text.refuse(offset(level[0]), f"more than {_DEEPEST} levels are inside one another")


def _children(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.Connector):
        return list(node.flatten(unnest=False))
    return list(node.iter_expressions())


def _not_sql(text: Text, tokens: Sequence[Token], error: ParseError) -> NoReturn:
    """sqlglot's line and column are those of a token's end; its sentence may quote the text."""
    detail = error.errors[0] if error.errors else {}
    where = (detail.get("line"), detail.get("col"))
    found = next((token for token in tokens if (token.line, token.col) == where), tokens[-1])
    shown = text.sql[found.start : found.end + 1]
    text.refuse(found.start, f"not an expression from {shown!r} on")
