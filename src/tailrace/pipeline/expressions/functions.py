"""The functions that an expression may call, with the number of arguments of each.

All of them are deterministic, take one row and depend on their arguments only, so that a replay of
the log produces the same messages. Every other function is refused, with a reason if it is known.
"""

from __future__ import annotations

from typing import Final

MANY: Final = 1000

UNCHANGED = "is_unchanged"
ABSENT = "is_absent"
KNOWN = "is_known"
TEXT = "text"
GUARDS = frozenset({UNCHANGED, ABSENT, KNOWN})
OWN = GUARDS | {TEXT}
"""Tailrace's own functions: each takes one column, by name."""

TO_JSON = "to_json"
STRUCT = "struct"
"""Its fields have names: `struct(id, total * 2 AS doubled)`."""

_STRINGS = {
    **dict.fromkeys(("lower", "upper", "lcase", "ucase", "initcap", "reverse", "ascii"), (1, 1)),
    **dict.fromkeys(("length", "len", "char_length", "character_length"), (1, 1)),
    **dict.fromkeys(("octet_length", "bit_length", "chr", "char", "space", "soundex"), (1, 1)),
    **dict.fromkeys(("trim", "ltrim", "rtrim", "btrim"), (1, 2)),
    **dict.fromkeys(("substr", "substring", "lpad", "rpad", "replace"), (2, 3)),
    **dict.fromkeys(("left", "right", "repeat", "instr"), (2, 2)),
    **dict.fromkeys(("startswith", "endswith", "contains"), (2, 2)),
    **dict.fromkeys(("locate", "position", "split", "levenshtein"), (2, 3)),
    **dict.fromkeys(("translate", "split_part", "substring_index"), (3, 3)),
    **dict.fromkeys(("concat", "concat_ws", "format_string", "printf"), (1, MANY)),
    "overlay": (3, 4),
    **dict.fromkeys(("regexp_like", "regexp_count", "regexp_substr"), (2, 2)),
    **dict.fromkeys(("regexp_extract", "regexp_instr"), (2, 3)),
    "regexp_replace": (3, 4),
}
_BYTES = {
    **dict.fromkeys(("base64", "unbase64", "hex", "unhex", "md5", "sha", "sha1", "crc32"), (1, 1)),
    **dict.fromkeys(("encode", "sha2"), (2, 2)),
    "decode": (2, MANY),
    **dict.fromkeys(("hash", "xxhash64"), (1, MANY)),
    **dict.fromkeys(("url_encode", "url_decode"), (1, 1)),
    "parse_url": (2, 3),
}
_CHOICES = {
    "if": (3, 3),
    "nvl2": (3, 3),
    **dict.fromkeys(("nvl", "ifnull", "nullif", "nanvl", "equal_null"), (2, 2)),
    **dict.fromkeys(("coalesce",), (1, MANY)),
    **dict.fromkeys(("greatest", "least"), (2, MANY)),
    **dict.fromkeys(("isnull", "isnotnull", "isnan", "nullifzero", "zeroifnull"), (1, 1)),
}
_NUMBERS = {
    **dict.fromkeys(("abs", "sign", "signum", "sqrt", "cbrt", "exp", "ln", "log10"), (1, 1)),
    **dict.fromkeys(("log2", "negative", "positive", "factorial", "bin", "bit_count"), (1, 1)),
    **dict.fromkeys(("ceil", "ceiling", "floor", "round", "bround", "log"), (1, 2)),
    **dict.fromkeys(("pow", "power", "mod", "pmod", "to_number", "try_to_number"), (2, 2)),
    **dict.fromkeys(("try_add", "try_subtract", "try_multiply", "try_divide", "try_mod"), (2, 2)),
    **dict.fromkeys(("to_char", "format_number"), (2, 2)),
    "conv": (3, 3),
    "width_bucket": (4, 4),
}
_TIMES = {
    **dict.fromkeys(("year", "quarter", "month", "day", "dayofmonth", "dayofweek"), (1, 1)),
    **dict.fromkeys(("dayofyear", "weekday", "weekofyear", "hour", "minute", "second"), (1, 1)),
    **dict.fromkeys(("date_add", "date_sub", "datediff", "date_diff", "add_months"), (2, 2)),
    **dict.fromkeys(("date_trunc", "trunc", "next_day", "date_format", "date_part"), (2, 2)),
    **dict.fromkeys(("from_utc_timestamp", "to_utc_timestamp"), (2, 2)),
    **dict.fromkeys(("last_day", "unix_seconds", "unix_millis", "unix_micros"), (1, 1)),
    **dict.fromkeys(("unix_date", "date_from_unix_date", "timestamp_seconds"), (1, 1)),
    **dict.fromkeys(("timestamp_millis", "timestamp_micros"), (1, 1)),
    # unix_timestamp without an argument is the current time, so it needs one.
    **dict.fromkeys(("unix_timestamp", "to_unix_timestamp", "from_unixtime"), (1, 2)),
    **dict.fromkeys(("to_date", "to_timestamp", "try_to_timestamp"), (1, 2)),
    **dict.fromkeys(("to_timestamp_ntz", "to_timestamp_ltz"), (1, 2)),
    "months_between": (2, 3),
    "make_date": (3, 3),
    "make_timestamp": (6, 7),
    "convert_timezone": (3, 3),
}
_JSON_AND_ARRAYS = {
    "get_json_object": (2, 2),
    **dict.fromkeys(("json_array_length", "json_object_keys"), (1, 1)),
    **dict.fromkeys(("array", STRUCT), (1, MANY)),
    "map": (2, MANY),
    TO_JSON: (1, 1),
    **dict.fromkeys(("array_contains", "array_position", "arrays_overlap"), (2, 2)),
    **dict.fromkeys(("element_at", "try_element_at", "get"), (2, 2)),
    **dict.fromkeys(("size", "cardinality", "array_size", "array_distinct"), (1, 1)),
    **dict.fromkeys(("array_min", "array_max"), (1, 1)),
    "sort_array": (1, 2),
    "array_join": (2, 3),
    "slice": (3, 3),
}

ALLOWED: Final = _STRINGS | _BYTES | _CHOICES | _NUMBERS | _TIMES | _JSON_AND_ARRAYS
"""Name → least and most arguments."""

PATTERNS: Final = frozenset(name for name in _STRINGS if name.startswith("regexp_")) | {"split"}
"""Functions whose second argument is a regular expression."""

TEXTLESS: Final = frozenset(
    {
        *("ascii", "length", "len", "char_length", "character_length", "octet_length"),
        *("bit_length", "instr", "startswith", "endswith", "contains", "locate", "position"),
        *("levenshtein", "regexp_like", "regexp_count", "regexp_instr", "chr", "char", "space"),
        *("unbase64", "unhex", "encode", "crc32", "hash", "xxhash64"),
        *_CHOICES,
        *(_NUMBERS.keys() - {"to_char", "format_number", "conv"}),
        *(_TIMES.keys() - {"date_format", "from_unixtime"}),
        *(_JSON_AND_ARRAYS.keys() - {"get_json_object", "json_object_keys", "array_join", TO_JSON}),
    }
)
"""Functions that return no text of several letters other than one of their arguments."""

_CHANGES = "returns another value on a replay"
_CODE = "runs code outside of SQL"
_ROWS = "needs more than one row"
_MAKES = "returns several rows for one"

REFUSED: Final = {
    **dict.fromkeys(("rand", "random", "randn", "randstr", "uniform", "shuffle", "uuid"), _CHANGES),
    **dict.fromkeys(("now", "current_timestamp", "current_date", "curdate"), _CHANGES),
    **dict.fromkeys(("current_time", "localtimestamp", "current_timezone"), _CHANGES),
    **dict.fromkeys(("monotonically_increasing_id", "spark_partition_id"), _CHANGES),
    **dict.fromkeys(("input_file_name", "input_file_block_start"), _CHANGES),
    **dict.fromkeys(("input_file_block_length", "aes_encrypt", "version"), _CHANGES),
    **dict.fromkeys(("current_user", "session_user", "user", "current_catalog"), _CHANGES),
    **dict.fromkeys(("current_database", "current_schema"), _CHANGES),
    **dict.fromkeys(("reflect", "java_method", "try_reflect"), _CODE),
    **dict.fromkeys(("sum", "count", "avg", "mean", "min", "max", "first", "last"), _ROWS),
    **dict.fromkeys(("any_value", "collect_list", "collect_set", "array_agg"), _ROWS),
    **dict.fromkeys(("string_agg", "listagg", "count_if", "bool_and", "bool_or"), _ROWS),
    **dict.fromkeys(("every", "some", "stddev", "variance", "median", "mode"), _ROWS),
    **dict.fromkeys(("approx_count_distinct", "percentile", "first_value"), _ROWS),
    **dict.fromkeys(("last_value", "row_number", "rank", "dense_rank", "lag", "lead"), _ROWS),
    **dict.fromkeys(("ntile", "percent_rank", "cume_dist", "nth_value"), _ROWS),
    **dict.fromkeys(("explode", "explode_outer", "posexplode", "inline", "stack"), _MAKES),
    **dict.fromkeys(("json_tuple", "posexplode_outer", "inline_outer"), _MAKES),
    "exists": "takes a subquery or a lambda, and neither is allowed",
}
"""Functions that users are likely to try, and why they are refused."""
