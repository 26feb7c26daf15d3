"""PostgreSQL types with awkward values of each, for tests that must hold for every type.

`SETUP` makes the types that are not built in; `OPTIONAL` extensions may be missing from a server.
A literal is what SQL takes between quotes: `INSERT … VALUES (%s)` or `'…'::type`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from tests.fix_postgres import Database

SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'né', 'ha''ppy, "yes"', '');
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE DOMAIN tiny AS positive CHECK (value < 10);
CREATE DOMAIN labels AS text[];
CREATE TYPE pair AS (a int, b text);
CREATE TYPE nested AS (p pair, list mood[]);
CREATE TYPE span AS RANGE (subtype = float8);
"""

OPTIONAL = ("vector", "hstore", "citext", "ltree")

NUMBERS = {
    "bool": ["t", "f"],
    "int2": ["-32768", "32767", "0", "127", "128", "-32", "-33", "-128", "-129", "255", "256"],
    "int4": ["-2147483648", "2147483647", "65535", "65536", "-32769"],
    "int8": ["-9223372036854775808", "9223372036854775807", "4294967295", "4294967296", "-1"],
    "oid": ["0", "4294967295"],
    "numeric": ["NaN", "Infinity", "-Infinity", "0", "-0.000", "1e131071", "1e-16383", "1" * 90],
    "numeric(5,2)": ["999.99", "-0.005", "1", "NaN"],
    "numeric(38,10)": ["9999999999999999999999999999.9999999999", "-1e-10"],
    "numeric(39,1)": ["1"],
    "numeric(3,-2)": ["12345", "-99900"],
    "numeric(2,5)": ["0.00012", "-0.00099"],
    "float4": ["NaN", "Infinity", "-Infinity", "-0", "1.1", "3.4028235e38", "1e-45", "16777216"],
    "float8": [
        "NaN", "Infinity", "-Infinity", "-0", "0.30000000000000004", "1e308", "5e-324", "1e15",
        "1e16", "36.6", "37",
    ],
    "money": ["-1234567.89", "92233720368547758.07"],
    "xid8": ["18446744073709551615"],
    "pg_lsn": ["16/B374D848"],
    "bit(5)": ["10101"],
    "varbit": ["", "0001"],
}  # fmt: skip
TIMES = {
    "date": [
        "infinity", "-infinity", "0044-03-15 BC", "4713-01-01 BC", "5874897-12-31", "2024-02-29",
        "0001-01-01", "9999-12-31",
    ],
    "time": ["24:00:00", "00:00:00.000001", "12:00"],
    "timetz": ["24:00:00+14", "23:59:59.5-15:59:59"],
    "timestamp": [
        "infinity", "-infinity", "294276-12-31 23:59:59.999999", "0001-01-01 BC", "0001-01-01",
        "9999-12-31 23:59:59.999999", "10000-01-01", "2025-12-12 12:00:34.338547", "2025-12-12",
    ],
    "timestamptz": [
        "infinity", "-infinity", "2024-02-03 04:05:06.7+05:45", "4714-11-24+00 BC",
        "2025-12-12 12:00:34.338547+00", "9999-12-31 23:59:59.999999+00", "10000-01-01+00",
        "0001-01-01 00:00:00+00", "1883-11-18 12:03:57+00",
    ],
    "timestamptz(3)": ["2024-10-27 01:30:00.123456 Europe/London"],
    "interval": ["1 mon -3 days +04:05:06.7", "-1 year 2 mons", "0", "178000000 years"],
    "interval day to second(3)": ["1 day 02:03:04.5678"],
}  # fmt: skip
TEXTS = {
    "text": [
        "", " ", "né 😀 \u200b\u202e", "a\tb\nc\\d\re\x01\x7f\x1f\b\f", "NULL", "'\"",
        "\ufeff\uffff", "\\", '"', "\\\\\"\\", "x" * 31, "x" * 32, "x" * 255, "x" * 256,
        "é" * 40_000, "null",
    ],
    "varchar(3)": ["é😀 "],
    "bpchar(5)": ["ab", ""],
    '"char"': ["x", "", "\\377"],
    "name": ["x" * 63],
    "bytea": ["\\x", "\\x00", "\\x00ff", "\\x00ff5c", "\\x00ff5c27", "\\xdeadbeef" + "00" * 300],
    "uuid": ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"],
    "json": [
        '{"b" : 1,  "a":[1.0, null ],"b":2}', '"\\u00e9"', "12345678901234567890.10", "1e400",
        "1E-7", " [ ] ", "{}", "null", "-0", "18446744073709551615", "18446744073709551616",
        '{"a":\n"\\n"}', '"\\ud800"', "-9223372036854775808", "-9223372036854775809", "1.5e3",
    ],
    "jsonb": [
        '{"b" : 1,  "a":[1.0, null ],"b":2}', '"\\u00e9"', "12345678901234567890.10", "1e40",
        "0.1", "123456789012345678", "9007199254740993.0", '{"k": "1234567890123456789"}', "[]",
        "true", "-0.0", '{"": {"": [[], {}]}}', '["a\\"b\\\\", "😀"]',
    ],
    "xml": ['<a b="é">&lt;</a>'],
    "jsonpath": ["$.a[*] ? (@ > 1)"],
    "tsvector": ["'quo''ted':1A,2B fat:3"],
    "tsquery": ["fat & !rat:ab | (a <-> b)"],
}  # fmt: skip
NETWORK_AND_SHAPES = {
    "inet": ["10.0.0.1/8", "::1", "2001:db8::/32"],
    "cidr": ["10.0.0.0/8", "::/0"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "point": ["(0.1,-1e300)", "(NaN,Infinity)"],
    "line": ["{1,-1,0.5}"],
    "lseg": ["[(0,0),(1,1)]"],
    "box": ["(0,0),(1,1)"],
    "path": ["[(0,0),(1,1)]", "((0,0),(1,1))"],
    "polygon": ["((0,0),(1,1),(1,0))"],
    "circle": ["<(0,0),1.5>"],
    "int4range": ["empty", "[1,5]", "(,3)", "(,)"],
    "numrange": ["[1.10,2.20)"],
    "daterange": ["[2024-01-01,infinity]", "[0044-03-15 BC,)"],
    "tstzrange": ['["2024-01-01 00:00:00+05:45",infinity)'],
    "span": ["[0.30000000000000004,Infinity]"],
    "int4multirange": ["{}", "{[1,3),[5,7)}"],
    "tstzmultirange": ["{[2024-01-01 00:00+01,2024-01-02 00:00+01)}"],
}
NESTED = {
    "bool[]": ["{t,f,NULL}"],
    "int4[]": ["{}", "{1,NULL}", "[0:1][5:6]={{1,2},{3,4}}", "{{{1}}}", "{{1,2},{3,4}}"],
    "int8[]": ["{9223372036854775807,-1}"],
    "float8[]": ["{NaN,-Infinity,0.1,1e300}"],
    "numeric(12,2)[]": ["{1.10,NaN}"],
    "text[]": [
        '{NULL,"NULL",null,""}', '{"a,b","q\\"uote","back\\\\slash","{}"," sp "}', '{"\\\\\\""}',
        "{{a,b},{c,NULL}}", '{"né","\\"😀\\""}', "{" + ",".join("abcdefghijklmnopqrst") + "}",
    ],
    "timestamptz[]": ['{infinity,"2024-02-03 04:05:06+05:45"}'],
    "bytea[]": ['{"\\\\x00ff",NULL,"\\\\x"}'],
    "jsonb[]": ['{"{\\"a\\": [1, \\"x\\"]}","null",NULL}'],
    "uuid[]": ["{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}"],
    "mood": ["sad", "né", 'ha\'ppy, "yes"', ""],
    "mood[]": ['{sad,"ha\'ppy, \\"yes\\"",""}'],
    "positive": ["7"],
    "tiny[]": ["{1,9}"],
    "labels": ['{a,"b c",NULL}'],
    "pair": ['(1,"q""u,o")', "(,)", '(2,"")'],
    "pair[]": ['{"(1,\\"a b\\")",NULL}'],
    "nested": ['("(1,x)","{sad,né}")'],
    "box[]": ["{(1,1),(0,0);(2,2),(1,1)}"],
}  # fmt: skip
EXTENDED = {
    "vector(3)": ["[1,-0.5,1e-30]"],
    "halfvec(2)": ["[1,-0.5]"],
    "sparsevec(5)": ["{1:1,3:-0.5}/5"],
    "hstore": ["", '"a"=>"1", "b"=>NULL', '"q\\"=>,"=>"\\\\", ""=>""', '"né"=>"NULL"'],
    "citext": ["MiXed"],
    "ltree": ["a.b.c"],
}
"""Types of the optional extensions; the type is missing where the extension is."""

VALUES = NUMBERS | TIMES | TEXTS | NETWORK_AND_SHAPES | NESTED | EXTENDED
"""Every type with its literals."""


def prepared(database: Database) -> dict[str, list[str]]:
    """Make the types that are not built in; the types this server has, with their values."""
    available = {name for (name,) in database.query("SELECT name FROM pg_available_extensions")}
    for name in sorted(available & set(OPTIONAL)):
        database.execute(f"CREATE EXTENSION {name}")
    database.execute(SETUP)
    return {kind: values for kind, values in VALUES.items() if _known(database, kind)}


def _known(database: Database, kind: str) -> bool:
    try:
        database.query(f"SELECT '<a/>'::{kind}" if kind == "xml" else f"SELECT NULL::{kind}")
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedObject):
        return False
    return True
