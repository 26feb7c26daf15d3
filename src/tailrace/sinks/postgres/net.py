"""The statements that apply changes to a target table, as sets of rows.

COPY writes the payloads of shape `plain` into a temporary table. `fill` turns them into events,
which PostgreSQL types as the target's columns:

| kind | event                                                                             |
|------|-----------------------------------------------------------------------------------|
| `p`  | put: a row with all values that the source has                                    |
| `q`  | partial put: an update without large values that it did not modify (TOAST)        |
| `g`  | gone: a deleted row, or the old key of an update that changed the key             |
| `t`  | TRUNCATE                                                                          |
| `r`  | a partial put that counts, with its rank among those of its key                   |
| `m`  | a change whose old key is unknown; `x`: an operation without a row. Errors        |

Only the last put or gone of a key counts, then the partial puts after it: of those with the same
columns the last one. The columns of a partial put that are not in `present` are never written.

Example: the events of one key in order. Everything but the marked ones is ignored.

    p(a=1,b=2)  q(a=2)  g  p(a=3,b=4)*  q(a=5)  q(b=6)*  q(a=7)*        stored: a=7, b=6
"""

# ruff: noqa: S608 - names are quoted, all other parts are constants or integers

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.postgres.names import quote_ident

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.sinks.postgres.catalog import Column, Target

STAGED = "pg_temp.tailrace_staged"
_CHANGE = "pg_temp.tailrace_change"
CREATE_STAGED = f"""
DROP TABLE IF EXISTS {STAGED}, {_CHANGE};
CREATE TEMP TABLE tailrace_staged (n bigint, payload json) ON COMMIT DELETE ROWS;
CREATE TEMP TABLE tailrace_change (op text, key json, before json, after json, unchanged json)
"""
_STAGED_TYPES = {"": None, "bytea": "text", "hstore": "json"}


class Statements:
    """The statements of one target table. Events are numbered by `n`, in the order of changes."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._table = target.table.quoted
        self._row = f"pg_temp.tailrace_row_{target.oid}"
        self.work = f"pg_temp.tailrace_work_{target.oid}"

    @property
    def create(self) -> str:
        """Create the temporary tables: the type of a row, and the events."""
        columns = ", ".join(
            f"{quote_ident(column.name)} {_STAGED_TYPES[column.kind] or column.type}"
            for column in self._target.columns
        )
        return (
            f"DROP TABLE IF EXISTS {self.work}, {self._row};"
            f"CREATE TEMP TABLE {_bare(self._row)} ({columns});"
            f'CREATE TEMP TABLE {_bare(self.work)} (n bigint, kind "char", present text[],'
            f" r {self._row}, rank bigint) ON COMMIT DELETE ROWS"
        )

    @property
    def fill(self) -> str:
        """Turn the staged payloads into events."""
        keys = _array(column.name for column, _ in self._target.key)
        same = " AND ".join(
            f"(old).{name} {operator} (new).{name}" for name, operator in self._key_names()
        )
        return f"""
INSERT INTO {self.work} (n, kind, present, r)
WITH changes AS MATERIALIZED (
    SELECT n, (c).op, (c).key, (c).before, (c).after, (c).unchanged FROM (
        SELECT n, json_populate_record(NULL::{_CHANGE}, payload) AS c FROM {STAGED} OFFSET 0
    ) s
), rows AS MATERIALIZED (
    SELECT n, op, before, after,
        json_populate_record(NULL::{self._row}, before) AS old,
        CASE WHEN after IS NOT NULL THEN
            json_populate_record(json_populate_record(NULL::{self._row}, before), after)
        END AS new,
        CASE WHEN after IS NULL THEN NULL
            WHEN before IS NULL THEN ARRAY(SELECT json_object_keys(after))
            ELSE ARRAY(
                SELECT json_object_keys(after) UNION SELECT json_object_keys(before) ORDER BY 1
            )
        END AS present,
        op IN ('update', 'delete')
            AND NOT coalesce(coalesce(key, before)::jsonb ?& {keys}, false) AS misfit,
        op = 'update' AND json_array_length(unchanged) > 0 AND EXISTS (
            SELECT FROM json_array_elements_text(unchanged) AS name
            WHERE before IS NULL OR before -> name IS NULL
        ) AS partial
    FROM changes
)
SELECT n, CASE WHEN misfit THEN 'm' WHEN partial THEN 'q' ELSE 'p' END::"char", present, new
FROM rows WHERE op IN ('insert', 'read', 'update')
UNION ALL
SELECT n, CASE WHEN misfit THEN 'm' ELSE 'g' END::"char", NULL, old
FROM rows WHERE op = 'delete' OR (op = 'update' AND before IS NOT NULL AND NOT ({same}))
UNION ALL
SELECT n, CASE op WHEN 'truncate' THEN 't' ELSE 'x' END::"char", NULL, NULL
FROM rows WHERE op IS NULL OR op NOT IN ('insert', 'read', 'update', 'delete')
"""

    @property
    def summary(self) -> str:
        """The kinds of events and their columns."""
        return f"SELECT DISTINCT kind, present FROM {self.work}"

    @property
    def truncate(self) -> str:
        """Delete all rows, and the events before the last TRUNCATE.

        DELETE and not TRUNCATE, which is not MVCC-safe: older snapshots would see an empty table.
        """
        return (
            f"DELETE FROM {self.work} WHERE n <= (SELECT max(n) FROM {self.work} WHERE kind = 't');"
            f"DELETE FROM {self._table}"
        )

    @property
    def moves(self) -> str:
        """The partial puts that also change the key."""
        return (
            f"SELECT n FROM {self.work} q JOIN {self.work} g USING (n)"
            " WHERE q.kind = 'q' AND g.kind = 'g' ORDER BY n"
        )

    def columns_of(self, n: int) -> str:
        """The columns of one of them."""
        return f"SELECT present FROM {self.work} WHERE (n, kind) = ({n}, 'q')"

    def move(self, n: int, present: Iterable[str]) -> str:
        """Apply one of them: the row keeps its other columns."""
        return (
            f"UPDATE {self._table} t SET {self._assignments(present, 'q')}"
            f" FROM {self.work} q, {self.work} g"
            f" WHERE (q.n, q.kind, g.n, g.kind) = ({n}, 'q', {n}, 'g') AND {self._found_by('g')}"
        )

    def delete(self, first: int, last: int) -> str:
        """Delete the rows whose last event is gone."""
        return (
            f"DELETE FROM {self._table} t USING ({self._final(first, last)}) f"
            f" WHERE f.kind = 'g' AND {self._found_by('f')}"
        )

    def upsert(self, first: int, last: int, present: Iterable[str]) -> str:
        """Insert or update the rows whose last event is a put with these columns."""
        chosen = tuple(present)
        columns = [each for each in self._target.columns if each.written and each.name in chosen]
        updated = [quote_ident(each.name) for each in columns if each.updated]
        sets = ", ".join(f"{name} = excluded.{name}" for name in updated)
        return (
            f"INSERT INTO {self._table} ({', '.join(quote_ident(each.name) for each in columns)})"
            f" OVERRIDING SYSTEM VALUE"
            f" SELECT {', '.join(_value(each, 'f') for each in columns)}"
            f" FROM ({self._final(first, last)}) f"
            f" WHERE f.kind = 'p' AND f.present = {_array(chosen)}"
            f" ON CONFLICT ({', '.join(name for name, _ in self._key_names())})"
            f" DO {f'UPDATE SET {sets}' if sets else 'NOTHING'}"
        )

    def rank(self, first: int, last: int) -> str:
        """Number the partial puts that count. Returns ranks and columns, and how many have them."""
        keys, within = self._keys("r"), _within(first, last)
        later = " AND ".join(
            f"(b.r).{name} {operator} (q.r).{name}" for name, operator in self._key_names()
        )
        return f"""
WITH ranked AS (
    INSERT INTO {self.work} (n, kind, present, r, rank)
    SELECT n, 'r', present, r, row_number() OVER (PARTITION BY {keys} ORDER BY n)
    FROM (
        SELECT DISTINCT ON ({keys}, present) n, present, r FROM {self.work}
        WHERE kind = 'q' AND {within} ORDER BY {keys}, present, n DESC
    ) q
    WHERE NOT EXISTS (
        SELECT FROM {self.work} b
        WHERE b.kind IN ('p', 'g') AND b.{within} AND b.n > q.n AND {later}
    )
    RETURNING rank, present
)
SELECT rank, present, count(*) FROM ranked GROUP BY rank, present ORDER BY rank
"""

    def patch(self, first: int, last: int, rank: int, present: Iterable[str]) -> str:
        """Update the rows of the partial puts of a rank with these columns."""
        return (
            f"UPDATE {self._table} t SET {self._assignments(present, 'w')} FROM {self.work} w"
            f" WHERE w.kind = 'r' AND w.{_within(first, last)} AND w.rank = {rank}"
            f" AND w.present = {_array(present)} AND {self._found_by('w')}"
        )

    def _final(self, first: int, last: int) -> str:
        """The last put or gone of each key. A put follows a gone of the same change."""
        keys = self._keys("r")
        return (
            f"SELECT DISTINCT ON ({keys}) kind, present, r FROM {self.work}"
            f" WHERE kind IN ('p', 'g') AND {_within(first, last)}"
            f" ORDER BY {keys}, n DESC, kind DESC"
        )

    def _assignments(self, present: Iterable[str], source: str) -> str:
        chosen = set(present)
        return ", ".join(
            f"{quote_ident(column.name)} = {_value(column, source)}"
            for column in self._target.columns
            if column.updated and column.name in chosen
        )

    def _found_by(self, source: str) -> str:
        return " AND ".join(
            f"t.{quote_ident(column.name)} {operator} {_value(column, source)}"
            for column, operator in self._target.key
        )

    def _keys(self, row: str) -> str:
        return ", ".join(f"({row}).{name}" for name, _ in self._key_names())

    def _key_names(self) -> list[tuple[str, str]]:
        return [(quote_ident(column.name), operator) for column, operator in self._target.key]


def _value(column: Column, source: str) -> str:
    """The value of a column in the row of an event, as the target's type."""
    value = f"({source}.r).{quote_ident(column.name)}"
    match column.kind:
        case "bytea":
            return f"decode({value}, 'base64')"
        case "hstore":
            pair = f"{_hstore_text('key')} || '=>' || coalesce({_hstore_text('value')}, 'NULL')"
            pairs = f"SELECT string_agg({pair}, ', ') FROM json_each_text({value})"
            return f"CASE WHEN {value} IS NOT NULL THEN coalesce(({pairs}), '') END::{column.type}"
        case _:
            return value


def _hstore_text(name: str) -> str:
    r"""A string in hstore's notation: in quotes, with `\` before quotes and backslashes."""
    return f"""('"' || replace(replace({name}, '\\', '\\\\'), '"', '\\"') || '"')"""


def _array(names: Iterable[str]) -> str:
    quoted = ", ".join("'" + name.replace("'", "''") + "'" for name in names)
    return f"ARRAY[{quoted}]::text[]"


def _within(first: int, last: int) -> str:
    return f"n BETWEEN {first} AND {last}"


def _bare(name: str) -> str:
    return name.removeprefix("pg_temp.")
