"""Limits of expressions: what one row may cost, and that a result never depends on the clock.

These checks need no table. They run after the allow-list (`render`), so every node is a known one.

- A text computed from constants is refused. Spark replaces a constant text such as `'now'` with the
  current time where it becomes a date, also if it is written `concat('no', 'w')`. A literal is safe
  (`sql.string`), and with a column in it Spark does not know the text in advance.
- Functions that make texts longer take literal widths and counts, and a result may be only so many
  times as long as the columns it is made of: `repeat(repeat(x, 1000), 1000)` is refused.
- Patterns are literals and must not backtrack without limit (`patterns`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from tailrace.pipeline.expressions import functions, patterns
from tailrace.pipeline.expressions.syntax import offset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.pipeline.expressions.syntax import Text

MAX_WIDTH: Final = 10_000
"""The largest width or count of `lpad`, `rpad`, `repeat`, `space` and `format_string`."""
MAX_DIGITS: Final = 100
"""The largest number of digits of `round` and `format_number`."""
MAX_FACTOR: Final = 100
"""How many times as long as a column a result may be."""
MAX_CHARACTERS: Final = 1_000_000
"""How many characters a result may have beyond those of columns."""

_ESCAPED = 6
"""A control character in JSON is a backslash, a u and four digits."""
_REPLACEMENTS = {"replace": 2, "regexp_replace": 2, "array_join": 1, "concat_ws": 0}
"""The argument that a function inserts many times."""


@dataclass(frozen=True, slots=True)
class _Result:
    """What is known about the result of a node.

    `constant`: it depends on no column. Its text is at most `factor` times as long as a column,
    plus `characters`.
    """

    constant: bool
    factor: int
    characters: int

    def times(self, count: int, *, plus: int = 0) -> _Result:
        return _Result(self.constant, self.factor * count, self.characters * count + plus)


def check(text: Text, tree: exp.Expr) -> None:
    """Refuse an expression that may cost too much or depend on the clock."""
    results: dict[int, _Result] = {}
    # From the leaves to the root, without recursion: a chain of OR may be 500 levels deep.
    for node in reversed(list(tree.bfs())):
        inner = [results[id(child)] for child in node.iter_expressions()]
        result = _Checker(text, node).result(inner)
        if result.factor > MAX_FACTOR:
            text.refuse(
                offset(node), f"the result may be more than {MAX_FACTOR} times as long as a column"
            )
        if result.characters > MAX_CHARACTERS:
            text.refuse(
                offset(node), f"the result may be longer than {MAX_CHARACTERS:,} characters"
            )
        results[id(node)] = result


class _Checker:
    """The checks of one node."""

    def __init__(self, text: Text, node: exp.Expr) -> None:
        self._text = text
        self._node = node
        self._name = node.this.lower() if isinstance(node, exp.Anonymous) else ""
        self._arguments: list[exp.Expr] = node.expressions if self._name else []

    def result(self, inner: Sequence[_Result]) -> _Result:
        """What is known about the node, from what is known about its parts."""
        if isinstance(self._node, exp.Column):
            return _Result(constant=False, factor=1, characters=0)
        if isinstance(self._node, exp.Literal):
            return _Result(constant=True, factor=0, characters=len(self._node.this))
        result = _Result(
            # A test of a column may be FALSE for all rows, and then it is a constant to Spark.
            constant=self._name in functions.GUARDS or all(part.constant for part in inner),
            factor=max((part.factor for part in inner), default=0),
            characters=sum(part.characters for part in inner),
        )
        if result.constant and self._computes_text():
            what = f"{self._name}()" if self._name else "an operator or CAST"
            self._text.refuse(
                offset(self._node),
                f"{what} of constants only must not compute a text: write the text as one literal",
            )
        self._check_pattern()
        return self._grown(result) if self._name else result

    def _computes_text(self) -> bool:
        """Whether the node makes a text of its own, other than a literal or one of its parts."""
        match self._node:
            case exp.Anonymous():
                return self._name not in functions.OWN | functions.TEXTLESS
            case exp.Cast() | exp.TryCast():
                plain = isinstance(self._node.this.unnest(), exp.Literal | exp.Boolean | exp.Null)
                return self._node.to.this is exp.DType.TEXT and not plain
            case _:
                return isinstance(self._node, exp.DPipe | exp.JSONExtract)

    def _check_pattern(self) -> None:
        if isinstance(self._node, exp.RegexpLike | exp.Like | exp.ILike):
            pattern = self._node.expression
        elif self._name in functions.PATTERNS:
            pattern = self._arguments[1]
        else:
            return
        if not self._is_text(pattern):
            self._text.refuse(
                offset(self._node),
                "the pattern of LIKE or of a regular expression must be a literal",
                hint="Texts of columns: contains, startswith, endswith, replace and split_part.",
            )
        like = isinstance(self._node, exp.Like | exp.ILike)
        literal = pattern.unnest()
        reason = patterns.like_problem if like else patterns.problem
        if refusal := reason(literal.this):
            self._text.refuse(offset(literal), refusal)

    def _grown(self, result: _Result) -> _Result:
        """The result of a function that makes its arguments longer."""
        grown = result
        match self._name:
            case functions.TO_JSON:
                grown = result.times(_ESCAPED)
            case "repeat":
                grown = result.times(self._number(1, MAX_WIDTH))
            case "lpad" | "rpad":
                grown = _Result(result.constant, 0, self._number(1, MAX_WIDTH))
            case "space":
                grown = _Result(result.constant, 0, self._number(0, MAX_WIDTH))
            case "hex" | "base64" | "url_encode":
                grown = result.times(3)
            case "replace" | "regexp_replace" | "array_join" | "concat_ws":
                grown = self._replaced(result)
            case "format_string" | "printf":
                grown = self._formatted(result)
            case "round" | "bround" | "ceil" | "ceiling" | "floor" if len(self._arguments) > 1:
                self._number(1, MAX_DIGITS)
            case "format_number" if not self._is_text(self._arguments[1]):
                grown = result.times(1, plus=self._number(1, MAX_DIGITS))
        return grown

    def _replaced(self, result: _Result) -> _Result:
        """`replace(x, 'a', 'bcd')` is at most three times as long as x."""
        index = _REPLACEMENTS[self._name]
        if index >= len(self._arguments):
            return result
        inserted = self._literal(index, "the text to insert")
        if self._name != "replace":
            lookaround = self._name == "regexp_replace" and re.search(
                r"\(\?<?[=!]", self._arguments[1].unnest().this
            )
            if lookaround and "$" in inserted:
                self._text.refuse(offset(self._node), "(?=...) cannot be combined with $ groups")
            return result.times(len(inserted) + 1)
        searched = self._arguments[1].unnest()
        length = len(searched.this) if self._is_text(searched) else 1
        return result.times(max(1, math.ceil(len(inserted) / max(1, length))))

    def _formatted(self, result: _Result) -> _Result:
        """`%1$s` may occur many times in a format, and a conversion has a width: `%100s`."""
        template = self._literal(0, "the format")
        conversions = re.findall(r"%[^a-zA-Z%]*", template)
        widths = [int(number) for each in conversions for number in re.findall(r"[0-9]+", each)]
        if max(widths, default=0) > MAX_WIDTH:
            self._text.refuse(
                offset(self._node), f"a width in a format may be at most {MAX_WIDTH:,}"
            )
        return result.times(max(1, len(conversions)), plus=sum(widths))

    def _number(self, index: int, most: int) -> int:
        """A literal number as an argument: not more than `most`, whatever its sign."""
        node = self._arguments[index].unnest()
        digits = node.this.unnest() if isinstance(node, exp.Neg) else node
        if not isinstance(digits, exp.Literal) or not re.fullmatch(r"[0-9]+", digits.this):
            self._text.refuse(
                offset(self._node),
                f"argument {index + 1} of {self._name}() must be a number, not an expression",
            )
        if int(digits.this) > most:
            self._text.refuse(
                offset(digits), f"argument {index + 1} of {self._name}() may be at most {most:,}"
            )
        return 0 if isinstance(node, exp.Neg) else int(digits.this)

    def _literal(self, index: int, what: str) -> str:
        node = self._arguments[index].unnest()
        if not self._is_text(node):
            self._text.refuse(
                offset(self._node),
                f"argument {index + 1} of {self._name}(), {what}, must be a literal",
            )
        return str(node.this)

    def _is_text(self, node: exp.Expr) -> bool:
        literal = node.unnest()
        return isinstance(literal, exp.Literal) and bool(literal.is_string)
