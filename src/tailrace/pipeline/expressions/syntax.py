"""The parser of expressions: from text to a syntax tree, with sqlglot.

sqlglot reads many dialects and whole statements, and rewrites while it reads: it turns functions
into nodes of its own, reads `'it''s'` as two strings and accepts `CASE` without `THEN`. So the
tokens are prepared first. Every word that the language of expressions does not use becomes a plain
name: sqlglot then never parses a statement, and every function call arrives as it was written.
String literals are decoded here, by Spark's rules.

This module refuses only what cannot be parsed without ambiguity. The allow-list is in
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

_MAX_CHARACTERS = 20_000
_MAX_NESTING = 32
"""sqlglot uses about twenty Python calls per level, and Python's stack is limited."""
_MAX_DEPTH = 100


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
_KEYWORDS = {
    *(_T.AND, _T.OR, _T.NOT, _T.IN, _T.IS, _T.NULL, _T.TRUE, _T.FALSE, _T.BETWEEN, _T.LIKE),
    *(_T.ILIKE, _T.RLIKE, _T.ESCAPE, _T.CASE, _T.WHEN, _T.THEN, _T.ELSE, _T.END, _T.ALIAS),
    *(_T.DISTINCT, _T.FROM, _T.DIV, _T.VAR),
}
"""Words that stay keywords. Any other word is a name."""

_REFUSED = {
    _T.PARAMETER: "session variables and ${...} are not supported",
    _T.PLACEHOLDER: "parameters are not supported",
    _T.SEMICOLON: "write one expression, without a semicolon",
    _T.ARROW: "lambdas are not allowed",
    _T.FARROW: "named arguments are not allowed",
    _T.L_BRACE: "braces are not allowed",
    _T.HINT: "hints are not allowed",
    _T.BLOCK_START: "braces are not allowed",
    _T.L_BRACKET: "brackets are only allowed in a JSON path; use element_at(...)",
}
_QUERY_STARTS = {"SELECT", "WITH", "FROM", "VALUES", "TABLE"}
_STATEMENT_STARTS = {
    *("SELECT", "WITH", "VALUES", "INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "DROP", "ALTER"),
    *("SET", "RESET", "USE", "ADD", "CACHE", "EXPLAIN", "CALL", "EXECUTE", "DECLARE", "SHOW"),
    *("DESCRIBE", "REFRESH", "ANALYZE", "TRUNCATE", "LOAD", "MSCK", "UNCACHE"),
}


@dataclass(frozen=True, slots=True)
class Text:
    """The text of one expression and the setting it comes from, such as `pipelines.paid.where`."""

    place: str
    sql: str

    @property
    def stage(self) -> str:
        """The setting without its pipeline: `where`, or `select` for `select[0]`."""
        return self.place.rpartition(".")[2].partition("[")[0]

    def refuse(self, offset: int, reason: str, *, hint: str = "") -> NoReturn:
        """Raise the error for the text at `offset`."""
        line = self.sql.count("\n", 0, offset) + 1
        column = offset - self.sql.rfind("\n", 0, offset)
        raise ExpressionError(f"{self.place}, line {line}, column {column}: {reason}", hint=hint)


def parse(text: Text, *, named: bool = False) -> exp.Expr:
    """Parse one expression; with `named`, `AS name` may follow it."""
    if len(text.sql) > _MAX_CHARACTERS:
        text.refuse(_MAX_CHARACTERS, f"an expression may have at most {_MAX_CHARACTERS} characters")
    dialect = _Dialect()
    try:
        tokens = dialect.tokenize(text.sql)
    except SqlglotError:
        text.refuse(len(text.sql), "a string, name or comment is not closed")
    if not tokens:
        text.refuse(0, "the expression is empty")
    _refuse_hints(text, tokens)
    _refuse_deep_nesting(text, tokens)
    tokens = [_prepared(text, tokens, index) for index in range(len(tokens))]
    _refuse_when_without_then(text, tokens)
    try:
        (tree,) = dialect.parser().parse_into(
            exp.Expr if named else exp.Condition, tokens, text.sql
        )
    except ParseError as error:
        _refuse_syntax(text, tokens, error)
    except (RecursionError, SqlglotError, ValueError):
        text.refuse(0, "the expression cannot be parsed")
    if tree is None:
        text.refuse(0, "the expression is empty")
    if named and isinstance(tree, exp.Alias):
        _refuse_name_without_as(text, tokens, tree)
    _refuse_deep_tree(text, tree)
    return tree


def offset(node: exp.Expr) -> int:
    """Where a node begins in its text: sqlglot notes that for leaves only."""
    starts = [part.meta["start"] for part in node.walk() if "start" in part.meta]
    return min(starts, default=0)


def _refuse_hints(text: Text, tokens: Sequence[Token]) -> None:
    """sqlglot drops most hints as comments; an error is better than a hint without effect."""
    end = 0
    for start, following in [(t.start, t.end + 1) for t in tokens] + [(len(text.sql), 0)]:
        hint = text.sql.find("/*+", end, start)
        if hint >= 0:
            text.refuse(hint, "hints are not allowed")
        end = following


def _refuse_deep_nesting(text: Text, tokens: Sequence[Token]) -> None:
    level = 0
    for token in tokens:
        level += token.token_type in (_T.L_PAREN, _T.CASE, _T.L_BRACKET)
        level -= token.token_type in (_T.R_PAREN, _T.END, _T.R_BRACKET)
        if level > _MAX_NESTING:
            text.refuse(
                token.start, f"the expression has more than {_MAX_NESTING} levels of nesting"
            )


def _prepared(text: Text, tokens: Sequence[Token], index: int) -> Token:
    """A token as the parser gets it."""
    token = tokens[index]
    before = tokens[index - 1] if index else None
    after = tokens[index + 1] if index + 1 < len(tokens) else None
    raw = text.sql[token.start : token.end + 1]
    if token.token_type in (_T.STRING, _T.RAW_STRING):
        return _copy(token, _T.STRING, _string(text, token.start, raw))
    if token.token_type in (_T.HEX_STRING, _T.BIT_STRING, _T.BYTE_STRING):
        if raw[:2] not in ("x'", "X'"):
            text.refuse(token.start, f"{raw} is not supported: write bytes as X'...'")
        return token
    if token.token_type is _T.L_BRACKET and _in_path(tokens, index):
        return token
    if reason := _REFUSED.get(token.token_type):
        text.refuse(token.start, reason)
    if token.token_type is _T.IDENTIFIER:
        return token
    if "'" in raw:
        text.refuse(token.start, f"{raw} is not supported: write text as '...'")
    if not re.fullmatch(r"[^\W\d]\w*", raw):
        return token
    return _word(text, token, raw, before, after)


def _in_path(tokens: Sequence[Token], index: int) -> bool:
    """Whether a bracket is part of a JSON path, `doc:a[0].b`: a colon begins the path."""
    for token in reversed(tokens[:index]):
        if token.token_type is _T.COLON:
            return True
        if token.token_type not in (_T.VAR, _T.IDENTIFIER, _T.DOT, _T.L_BRACKET, _T.R_BRACKET) and (
            token.token_type not in (_T.NUMBER, _T.STRING)
        ):
            return False
    return False


def _word(text: Text, token: Token, raw: str, before: Token | None, after: Token | None) -> Token:
    """A word as the parser gets it: a keyword, the name of a type, or a name.

    | word                                  | example                     | result  |
    |---------------------------------------|-----------------------------|---------|
    | begins a statement                    | `DROP TABLE t`              | refused |
    | begins a subquery                     | `a IN (SELECT 1)`           | refused |
    | follows a dot                         | `after.end`                 | a name  |
    | is in `_KEYWORDS`                     | `a AND b`, `CASE`           | keyword |
    | follows AS or `::`: a type            | `CAST(a AS int)`, `a::date` | keyword |
    | precedes a string: a typed literal    | `DATE '2024-01-01'`         | keyword |
    | INTERVAL before a number              | `INTERVAL 3 DAY`            | keyword |
    | anything else                         | `order = 1`, `lower(a)`     | a name  |

    `values = 4` and `(table)` are names too: only a word that starts an operand makes `values` or
    `table` the beginning of a query.
    """
    word = raw.upper()
    if after is not None and _starts_operand(after):
        if before is None and word in _STATEMENT_STARTS:
            text.refuse(token.start, "statements are not allowed: write one expression")
        if word in _QUERY_STARTS and (before is None or before.token_type is _T.L_PAREN):
            text.refuse(token.start, "subqueries are not allowed")
    after_dot = before is not None and before.token_type is _T.DOT
    if not after_dot and _is_keyword(token, before, after):
        return token
    return _copy(token, _T.VAR, raw)


def _is_keyword(token: Token, before: Token | None, after: Token | None) -> bool:
    """Whether the parser needs the token's own type: see the table of `_word`."""
    if token.token_type in _KEYWORDS:
        return True
    if before is not None and before.token_type in (_T.ALIAS, _T.DCOLON):
        return True
    if after is None:
        return False
    if after.token_type in (_T.STRING, _T.RAW_STRING):
        return True
    return token.token_type is _T.INTERVAL and after.token_type is _T.NUMBER


def _starts_operand(token: Token) -> bool:
    """Whether an operand begins here, rather than an operator, a comma or a closing parenthesis.

    `SELECT 1` and `SELECT a` are statements; `select = 1` and `select IN (1)` compare a column.
    """
    operand = {_T.NUMBER, _T.STRING, _T.STAR, _T.IDENTIFIER, _T.L_PAREN}
    return token.token_type in operand or (
        token.token_type
        not in _KEYWORDS - {_T.VAR, _T.CASE, _T.NULL, _T.TRUE, _T.FALSE, _T.DISTINCT}
        and re.match(r"[^\W\d]", token.text) is not None
    )


def _copy(token: Token, kind: TokenType, value: str) -> Token:
    return Token(kind, value, token.line, token.col, token.start, token.end)


def _string(text: Text, start: int, raw: str) -> str:
    """The value of a string literal, `'...'` or `r'...'`, by Spark's rules."""
    if raw[:1] in "rR":
        if raw[1] == '"':
            _refuse_double_quotes(text, start)
        return raw[2:-1]
    if raw[:1] == '"':
        _refuse_double_quotes(text, start)
    if raw[:1] != "'":
        text.refuse(start, f"{raw} is not supported: write text as '...'")
    value = _ESCAPE.sub(_unescaped, raw[1:-1])
    try:
        # As in Java, two \u escapes may be the halves of one character.
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        text.refuse(start, "one half of a surrogate pair is not a character")


def _refuse_double_quotes(text: Text, start: int) -> NoReturn:
    text.refuse(
        start,
        "double quotes are not supported: they are text in Spark and names in PostgreSQL",
        hint="Write text as '...' and names as `...`.",
    )


_ESCAPE = re.compile(r"''|\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-3][0-7]{2}|.)", re.DOTALL)
_LETTERS = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}


def _unescaped(match: re.Match[str]) -> str:
    """One escape by Spark's rules. `%` and `_` keep their backslash, for LIKE."""
    body = match[1]
    if body is None:
        return "'"
    if len(body) == 1:
        return "\\" + body if body in "%_" else _LETTERS.get(body, body)
    code = int(body[1:], 16) if body[0] in "uU" else int(body, 8)
    return chr(code) if code < 0x110000 else "\ufffd"


def _refuse_when_without_then(text: Text, tokens: Sequence[Token]) -> None:
    """sqlglot accepts `CASE WHEN a END`."""
    whens = [token for token in tokens if token.token_type is _T.WHEN]
    if len(whens) != sum(token.token_type is _T.THEN for token in tokens):
        text.refuse(whens[0].start if whens else 0, "every WHEN needs a THEN")


def _refuse_name_without_as(text: Text, tokens: Sequence[Token], tree: exp.Alias) -> None:
    """`a b` is more often a missing operator than a name."""
    name = tree.args.get("alias")
    start = offset(name) if isinstance(name, exp.Expr) else len(text.sql)
    words = [token for token in tokens if token.start < start]
    if not words or words[-1].token_type is not _T.ALIAS:
        text.refuse(start, "write AS before a name")


def _refuse_deep_tree(text: Text, tree: exp.Expr) -> None:
    """Chains of AND and OR count as one level: the renderer writes them flat."""
    level = [tree]
    for _ in range(_MAX_DEPTH):
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    text.refuse(offset(level[0]), f"the expression has more than {_MAX_DEPTH} levels of operators")


def _children(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.Connector):
        return list(node.flatten(unnest=False))
    return list(node.iter_expressions())


def _refuse_syntax(text: Text, tokens: Sequence[Token], error: ParseError) -> NoReturn:
    """sqlglot reports the end of a token, and its message may quote the rewritten text."""
    detail = error.errors[0] if error.errors else {}
    end = (detail.get("line"), detail.get("col"))
    token = next((token for token in tokens if (token.line, token.col) == end), tokens[-1])
    shown = text.sql[token.start : token.end + 1]
    text.refuse(token.start, f"syntax error at {shown!r}")
