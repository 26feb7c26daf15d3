"""The renderer: checks a syntax tree against the allow-list and writes it as Spark SQL.

Checking and writing are one walk, so nothing can be checked in one way and written in another. Each
method names the parts its node may have; an unknown part refuses the expression. Every composite is
written in parentheses, so that Spark cannot bind it differently from sqlglot.

Example: `a = 1 AND op <> 'delete'` becomes `((<a> = 1) AND (`op` <> 'delete'))`, where `<a>` is
the Spark SQL that `names` returns for the column.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, NoReturn

from sqlglot import exp

from tailrace.pipeline.expressions import cells, functions, sql
from tailrace.pipeline.expressions.allowed import (
    BINARY,
    CONDITIONS,
    FIELDS,
    IGNORED_PARTS,
    QUALIFIERS,
    REASONS,
    TYPES,
    UNITS,
)
from tailrace.pipeline.expressions.reference import Reference
from tailrace.pipeline.expressions.syntax import offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.pipeline.expressions.reference import Names
    from tailrace.pipeline.expressions.syntax import Text


class Renderer:
    """Writes one expression as Spark SQL, with its names resolved by `names`."""

    def __init__(self, text: Text, names: Names) -> None:
        self._text = text
        self._names = names
        self._writers: dict[type[exp.Expr], Callable[..., str]] = {
            exp.Paren: self._paren,
            exp.And: self._connected,
            exp.Or: self._connected,
            exp.Not: self._not,
            exp.NullSafeNEQ: self._distinct,
            exp.Escape: self._escape,
            exp.Is: self._is,
            exp.In: self._in,
            exp.Between: self._between,
            exp.Neg: self._negative,
            exp.Case: self._case,
            exp.Cast: self._cast,
            exp.TryCast: self._cast,
            exp.Extract: self._extract,
            exp.Interval: self._interval,
            exp.JSONExtract: self._path,
            exp.Column: self._column,
            exp.Anonymous: self._function,
            exp.Literal: self._literal,
            exp.HexString: self._bytes,
            exp.Boolean: self._boolean,
            exp.Null: self._null,
        }

    def sql(self, node: exp.Expr) -> str:
        """The node as Spark SQL; raises `ExpressionError` if it is not allowed."""
        if type(node) in BINARY:
            return self._binary(node)
        writer = self._writers.get(type(node))
        if writer is None:
            self._refuse(node, REASONS.get(type(node), f"{_name_of(node)} is not allowed"))
        return writer(node)

    def _refuse(self, node: exp.Expr, reason: str) -> NoReturn:
        self._text.refuse(offset(node), reason)

    def _only(self, node: exp.Expr, *parts: str) -> None:
        """Refuse a node with a part that its writer does not know and would drop."""
        for part, value in node.args.items():
            if part not in parts and part not in IGNORED_PARTS and value not in (None, False, []):
                self._refuse(node, f"{_name_of(node)} with {part!r} is not allowed")

    def _part(self, node: exp.Expr, part: str) -> exp.Expr:
        child = node.args.get(part)
        if not isinstance(child, exp.Expr):
            self._refuse(node, f"{_name_of(node)} is not complete")
        return child

    def _operand(self, node: exp.Expr, part: str) -> str:
        """An operand; a condition in its place needs parentheses, as in `(a = b) IS NULL`."""
        operand = self._part(node, part)
        if isinstance(operand, CONDITIONS):
            self._refuse(operand, "put parentheses around a condition that is an operand")
        return self.sql(operand)

    def _binary(self, node: exp.Expr) -> str:
        self._only(node, "this", "expression", "negate")
        left, right = self._part(node, "this"), self._part(node, "expression")
        for side in (left, right):
            if isinstance(node, exp.DPipe) and isinstance(side, exp.Add | exp.Sub):
                self._refuse(side, "put parentheses around + and - next to ||")
        operator = BINARY[type(node)]
        if node.args.get("negate"):
            operator = f"NOT {operator}"
        return f"({self._operand(node, 'this')} {operator} {self._operand(node, 'expression')})"

    def _paren(self, node: exp.Expr) -> str:
        self._only(node, "this")
        return self.sql(self._part(node, "this"))

    def _connected(self, node: exp.Connector) -> str:
        """A chain of AND or OR, written flat: `(a AND b AND c)`."""
        self._only(node, "this", "expression")
        word = " AND " if isinstance(node, exp.And) else " OR "
        return "(" + word.join(self.sql(part) for part in node.flatten(unnest=False)) + ")"

    def _not(self, node: exp.Expr) -> str:
        self._only(node, "this")
        return f"(NOT {self.sql(self._part(node, 'this'))})"

    def _distinct(self, node: exp.Expr) -> str:
        self._only(node, "this", "expression")
        return f"(NOT ({self._operand(node, 'this')} <=> {self._operand(node, 'expression')}))"

    def _escape(self, node: exp.Expr) -> str:
        """`a LIKE b ESCAPE '!'`: sqlglot's ESCAPE node wraps the LIKE."""
        self._only(node, "this", "expression")
        like, mark = self._part(node, "this"), self._part(node, "expression")
        if not isinstance(like, exp.Like | exp.ILike) or not isinstance(mark, exp.Literal):
            self._refuse(node, "ESCAPE takes one character and must follow LIKE")
        if mark.this == "\\":
            return self._binary(like)
        if not mark.is_string or not re.fullmatch(r"[!-~]", mark.this) or mark.this in "'$":
            self._refuse(mark, "ESCAPE must be one ASCII character other than a quote or $")
        return f"{self._binary(like)[:-1]} ESCAPE '{mark.this}')"

    def _is(self, node: exp.Expr) -> str:
        self._only(node, "this", "expression")
        right = self._part(node, "expression")
        if not isinstance(right, exp.Null | exp.Boolean):
            self._refuse(right, "IS must be followed by NULL, TRUE, FALSE or DISTINCT FROM")
        return f"({self._operand(node, 'this')} IS {self.sql(right)})"

    def _in(self, node: exp.Expr) -> str:
        if node.args.get("query"):
            self._refuse(node, "subqueries are not allowed")
        self._only(node, "this", "expressions")
        items = node.expressions
        if not items:
            self._refuse(node, "IN must be followed by a list in parentheses")
        return f"({self._operand(node, 'this')} IN ({', '.join(map(self.sql, items))}))"

    def _between(self, node: exp.Expr) -> str:
        self._only(node, "this", "low", "high")
        this, low, high = (self._operand(node, part) for part in ("this", "low", "high"))
        return f"({this} BETWEEN {low} AND {high})"

    def _negative(self, node: exp.Expr) -> str:
        self._only(node, "this")
        return f"(- {self._operand(node, 'this')})"

    def _case(self, node: exp.Expr) -> str:
        self._only(node, "this", "ifs", "default")
        if not node.args.get("ifs"):
            self._refuse(node, "CASE needs WHEN ... THEN ...")
        words = ["CASE"]
        if node.args.get("this"):
            words.append(self._operand(node, "this"))
        for branch in node.args["ifs"]:
            self._only(branch, "this", "true")
            condition, result = self.sql(self._part(branch, "this")), self._part(branch, "true")
            if not node.args.get("this"):
                condition = self._names.condition(condition)
            words.append(f"WHEN {condition} THEN {self.sql(result)}")
        if node.args.get("default"):
            words.append(f"ELSE {self.sql(self._part(node, 'default'))}")
        return f"({' '.join(words)} END)"

    def _cast(self, node: exp.Expr) -> str:
        self._only(node, "this", "to")
        word = "TRY_CAST" if isinstance(node, exp.TryCast) else "CAST"
        return f"{word}({self.sql(self._part(node, 'this'))} AS {self._type(node)})"

    def _type(self, node: exp.Expr) -> str:
        kind = self._part(node, "to")
        if not isinstance(kind, exp.DataType) or kind.args.get("nested"):
            self._refuse(node, "CAST supports simple types only")
        self._only(kind, "this", "expressions", "nested")
        if kind.this is exp.DType.DECIMAL:
            return f"DECIMAL{self._precision(node, kind)}"
        if kind.this not in TYPES or kind.expressions:
            self._refuse(node, f"CAST to {kind.sql()} is not supported")
        return TYPES[kind.this]

    def _precision(self, node: exp.Expr, kind: exp.DataType) -> str:
        numbers = [str(parameter.this) for parameter in kind.expressions]
        if len(numbers) > 2 or not all(re.fullmatch(r"[0-9]{1,2}", number) for number in numbers):
            self._refuse(node, "DECIMAL takes a precision and a scale")
        return f"({','.join(numbers)})" if numbers else ""

    def _extract(self, node: exp.Expr) -> str:
        self._only(node, "this", "expression")
        field = self._part(node, "this").name.upper()
        if field not in FIELDS:
            self._refuse(node, f"EXTRACT must be one of {', '.join(sorted(FIELDS))}")
        return f"extract({field} FROM {self.sql(self._part(node, 'expression'))})"

    def _interval(self, node: exp.Expr) -> str:
        self._only(node, "this", "unit", "fraction_in_string")
        number, unit = self._part(node, "this"), node.args.get("unit")
        word = unit.name.upper().removesuffix("S") if isinstance(unit, exp.Var) else ""
        if not isinstance(number, exp.Literal) or word not in UNITS:
            self._refuse(node, "INTERVAL needs a number and a unit, such as INTERVAL '3' DAY")
        if not re.fullmatch(r"-?[0-9]{1,18}(\.[0-9]{1,9})?", number.this):
            self._refuse(node, "INTERVAL needs a number and a unit, such as INTERVAL '3' DAY")
        return f"INTERVAL '{number.this}' {word}"

    def _path(self, node: exp.Expr) -> str:
        self._only(node, "this", "expression")
        path = self._part(node, "expression")
        steps = [self._step(node, part) for part in path.expressions]
        document = self.sql(self._part(node, "this"))
        return f"get_json_object({document}, {sql.string(''.join(steps))})"

    def _step(self, node: exp.Expr, part: exp.Expr) -> str:
        if isinstance(part, exp.JSONPathRoot):
            return "$"
        if isinstance(part, exp.JSONPathKey) and isinstance(part.this, str):
            if re.search(r"['\[\]\\?*]", part.this) or not part.this:
                self._refuse(node, f"the key {part.this!r} is not supported in a JSON path")
            return f"['{part.this}']"
        if not isinstance(part, exp.JSONPathSubscript) or not isinstance(part.this, int):
            self._refuse(node, "a JSON path may contain names and numbers only")
        return f"[{part.this}]"

    def _column(self, node: exp.Expr) -> str:
        return self._names.value(self._reference(node))

    def _reference(self, node: exp.Expr) -> Reference:
        name, qualifier = node.args.get("this"), node.args.get("table")
        if isinstance(name, exp.Star):
            self._refuse(node, REASONS[exp.Star])
        if not isinstance(node, exp.Column) or not isinstance(name, exp.Identifier):
            self._refuse(node, "a column name is expected here")
        if node.args.get("db"):
            self._refuse(node, REASONS[exp.Dot])
        self._only(node, "this", "table")
        prefix = qualifier.name if isinstance(qualifier, exp.Identifier) else ""
        if prefix and prefix.lower() not in QUALIFIERS | set(self._names.lookups):
            others = "".join(f", {name}." for name in self._names.lookups)
            self._refuse(
                node, f"unknown qualifier {prefix}: write before., after., row.{others} or change."
            )
        if not prefix and not name.quoted and name.name.lower() in functions.REFUSED:
            self._refuse_clock_function(node, name.name)
        return Reference(
            qualifier=prefix.lower(), name=name.name, exact=bool(name.quoted), offset=offset(node)
        )

    def _refuse_clock_function(self, node: exp.Expr, name: str) -> None:
        """Spark reads `current_date` as a function. Other refused names, such as `user`, are likely
        columns, and without parentheses they are read as columns."""
        reason = functions.REFUSED[name.lower()]
        if name.lower().startswith(("current_", "local")):
            self._refuse(node, f"{name} is not allowed: it {reason}")

    def _function(self, node: exp.Expr) -> str:
        self._only(node, "this", "expressions")
        if not isinstance(node.this, str):
            self._refuse(node, "write the name of a function without backticks")
        name, arguments = node.this.lower(), node.expressions
        if name in functions.OWN:
            return self._own_function(node, name, arguments)
        if name in functions.REFUSED:
            self._refuse(node, f"{name}() is not allowed: it {functions.REFUSED[name]}")
        if name not in functions.ALLOWED:
            self._refuse(node, f"unknown function {name}(){_suggestion(name)}")
        least, most = functions.ALLOWED[name]
        if not least <= len(arguments) <= most:
            self._refuse(node, f"{name}() takes {_count(least, most)}, not {len(arguments)}")
        if name == functions.STRUCT:
            return self._struct(arguments)
        written = [self.sql(argument) for argument in arguments]
        if name == functions.TO_JSON:
            return cells.json(written[0])
        if name == "if":
            written[0] = self._names.condition(written[0])
        return f"{name}({', '.join(written)})"

    def _struct(self, arguments: list[exp.Expr]) -> str:
        """The fields with their names, which Spark would lose: its columns are arrays of cells."""
        fields: dict[str, str] = {}
        for argument in arguments:
            name, value = self._field(argument)
            if name in fields:
                self._refuse(argument, f"the name {name} is already used by an earlier field")
            fields[name] = f"{sql.string(name)}, {self.sql(value)}"
        return f"named_struct({', '.join(fields.values())})"

    def _field(self, argument: exp.Expr) -> tuple[str, exp.Expr]:
        if isinstance(argument, exp.Alias):
            self._only(argument, "this", "alias")
            alias = argument.args["alias"]
            if not isinstance(alias, exp.Identifier) or not alias.name:
                self._refuse(argument, "AS must be followed by a name")
            return alias.name, self._part(argument, "this")
        if not isinstance(argument, exp.Column):
            self._refuse(argument, "a field of struct() needs a name: add AS name")
        return self._reference(argument).name, argument

    def _own_function(self, node: exp.Expr, name: str, arguments: list[exp.Expr]) -> str:
        if len(arguments) != 1:
            self._refuse(node, f"{name}() takes one column")
        reference = self._reference(arguments[0])
        if name == functions.TEXT:
            return self._names.text(reference)
        if name == functions.UNCHANGED:
            return f"({self._names.unchanged(reference)})"
        if name == functions.ABSENT:
            return f"({self._names.absent(reference)})"
        unchanged, absent = self._names.unchanged(reference), self._names.absent(reference)
        return f"(NOT ({unchanged}) AND NOT ({absent}))"

    def _literal(self, node: exp.Expr) -> str:
        self._only(node, "this", "is_string")
        if node.args.get("is_string"):
            return sql.string(node.this)
        if not re.fullmatch(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?", node.this):
            self._refuse(node, f"{node.this} is not a number")
        return str(node.this)

    def _bytes(self, node: exp.Expr) -> str:
        self._only(node, "this", "is_integer")
        if not re.fullmatch(r"([0-9A-Fa-f]{2})*", node.this):
            self._refuse(node, "X'...' takes pairs of hexadecimal digits")
        return f"X'{node.this}'"

    def _boolean(self, node: exp.Expr) -> str:
        return "TRUE" if node.this else "FALSE"

    def _null(self, _node: exp.Expr) -> str:
        return "NULL"


def _name_of(node: exp.Expr) -> str:
    """The node's class as words: `JSONExtract` is JSON EXTRACT."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).upper()


def _count(least: int, most: int) -> str:
    if least == most:
        return f"{least} argument{'s' * (least > 1)}"
    return f"{least} or more arguments" if most == functions.MANY else f"{least} to {most}"


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, [*functions.ALLOWED, *functions.OWN], n=1)
    return f", did you mean {close[0]}()?" if close else ""
