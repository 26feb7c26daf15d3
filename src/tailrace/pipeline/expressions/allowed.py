"""The allow-list of nodes: operators, types, units and fields, as sqlglot names them.

`render` writes these and the nodes it has a method for. It refuses every other node, with a reason
from here where the node is a likely mistake. The allow-list of functions is in `functions`.
"""

from __future__ import annotations

from sqlglot import exp

BINARY: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.NullSafeEQ: "<=>",
    exp.Like: "LIKE",
    exp.ILike: "ILIKE",
    exp.RegexpLike: "RLIKE",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.IntDiv: "DIV",
    exp.Mod: "%",
    exp.DPipe: "||",
}
CONDITIONS = (
    *(exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE),
    *(exp.NullSafeEQ, exp.NullSafeNEQ, exp.Like, exp.ILike, exp.RegexpLike, exp.Escape),
    *(exp.Is, exp.In, exp.Between),
)
"""Nodes that are true or false.

Spark and sqlglot bind them differently when one is an operand of another: `a = b = c`.
"""

IGNORED_PARTS = {"safe", "variant_extract", "requires_json", "only_json_types"}
"""Flags of sqlglot that say how a node was parsed; they have no meaning of their own."""

TYPES = {
    exp.DType.BOOLEAN: "BOOLEAN",
    exp.DType.TINYINT: "TINYINT",
    exp.DType.SMALLINT: "SMALLINT",
    exp.DType.INT: "INT",
    exp.DType.BIGINT: "BIGINT",
    exp.DType.FLOAT: "FLOAT",
    exp.DType.DOUBLE: "DOUBLE",
    exp.DType.TEXT: "STRING",
    exp.DType.BINARY: "BINARY",
    exp.DType.DATE: "DATE",
    exp.DType.TIMESTAMP: "TIMESTAMP",
    exp.DType.TIMESTAMPTZ: "TIMESTAMP",
    exp.DType.TIMESTAMPLTZ: "TIMESTAMP",
    exp.DType.TIMESTAMPNTZ: "TIMESTAMP_NTZ",
}
"""Types that CAST accepts, as Spark spells them. DECIMAL has parameters and is not listed."""

QUALIFIERS = {"before", "after", "row", "change"}
"""Of columns, except for `change`: it qualifies the fields of the change itself."""

UNITS = {"YEAR", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND"}
"""Units of INTERVAL."""

FIELDS = {
    *("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DAYOFWEEK", "DOW", "DOY"),
    *("HOUR", "MINUTE", "SECOND", "YEAROFWEEK", "DAYOFWEEK_ISO"),
}
"""Fields of EXTRACT."""

REASONS: dict[type[exp.Expr], str] = {
    exp.Select: "subqueries are not allowed",
    exp.Subquery: "subqueries are not allowed",
    exp.Exists: "subqueries are not allowed",
    exp.Star: "* is not allowed: name the columns",
    exp.Window: "window functions are not allowed",
    exp.Distinct: "DISTINCT and aggregates are not allowed",
    exp.Lambda: "lambdas are not allowed",
    exp.Placeholder: "parameters are not supported",
    exp.Parameter: "session variables are not supported",
    exp.Alias: "AS is only allowed in `select` and in struct()",
    exp.Concat: "two strings in a row: write ||, or '' for a quote inside a string",
    exp.Dot: "a qualified name is before.column, after.column or change.field",
    exp.Tuple: "a list in parentheses is only allowed after IN",
    exp.JSONExtractScalar: "write a JSON path as doc:name, or use get_json_object",
    exp.AtTimeZone: "use from_utc_timestamp or to_utc_timestamp",
}
"""Why certain nodes are refused; any other node is refused by its name."""
