"""Users and their rules, from the operator's side: made, changed and listed in the tables.

A running broker hears of every change at once. Passwords end here: what goes to PostgreSQL is keys.
"""

from __future__ import annotations

import secrets
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from tailrace.broker.auth import scram
from tailrace.broker.auth.access import CLUSTER, OPERATIONS, Operation, Resource
from tailrace.broker.tables.pool import connect
from tailrace.errors import ConfigError
from tailrace.postgres.connection import translate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tailrace.broker.tables.pool import Connection

_MOST_NAME = 256
_ADD = """
INSERT INTO kafka.users (name, superuser) VALUES (%(name)s, coalesce(%(superuser)s, false))
ON CONFLICT (name) DO UPDATE SET superuser = coalesce(%(superuser)s, users.superuser)
RETURNING xmax = 0
"""
_KEYS = """
INSERT INTO kafka.credentials VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (user_name, mechanism) DO UPDATE SET salt = excluded.salt,
    iterations = excluded.iterations, stored_key = excluded.stored_key,
    server_key = excluded.server_key
"""
_USERS = """
SELECT name, superuser, (SELECT count(*) FROM kafka.acls WHERE principal = name)
FROM kafka.users ORDER BY name
"""
_REVOKE = """
DELETE FROM kafka.acls WHERE principal = %s AND resource = %s AND pattern = %s
    AND operation = ANY (%s)
"""
_RULES = """
SELECT principal, resource, pattern, string_agg(operation, ',' ORDER BY operation) FROM kafka.acls
WHERE principal = %(user)s OR %(user)s::text IS NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Operations that a user may do with what a pattern matches."""

    user: str
    resource: Resource
    pattern: str
    operations: tuple[Operation, ...]

    def check(self) -> None:
        """An error for operations that there are not of such a thing."""
        for operation in self.operations:
            if operation not in OPERATIONS[self.resource]:
                known = ", ".join(sorted(OPERATIONS[self.resource]))
                raise ConfigError(
                    f"a {self.resource} has no operation {operation}", hint=f"There are: {known}"
                )
        at = self.pattern.find("*")
        if not self.pattern or 0 <= at < len(self.pattern) - 1:
            raise ConfigError(
                f"{self.pattern!r} is no pattern", hint="A name, a beginning such as orders*, or *."
            )
        if self.resource is Resource.CLUSTER and self.pattern not in ("*", CLUSTER):
            raise ConfigError("there is one cluster: its pattern is *")


async def add_user(dsn: str, name: str, password: str, *, superuser: bool | None) -> bool:
    """Add a user, or change the password of one; whether it is new."""
    if not 0 < len(name) <= _MOST_NAME or "\0" in name:
        raise ConfigError("a user's name has 1 to 256 letters")
    if not password or "\0" in password:
        raise ConfigError("the password is empty")
    async with _tables(dsn) as connection, connection.transaction():
        cursor = await connection.execute(_ADD, {"name": name, "superuser": superuser})
        (new,) = await cursor.fetchone() or (False,)
        for mechanism in scram.HASHES:
            made = scram.keys(mechanism, password, secrets.token_bytes(scram.SALT_BYTES))
            values = (name, mechanism, made.salt, made.iterations, made.stored, made.server)
            await connection.execute(_KEYS, values)
    return bool(new)


async def remove_user(dsn: str, name: str) -> int:
    """Remove a user with all rules; how many users are left."""
    async with _tables(dsn) as connection, connection.transaction():
        gone = await connection.execute("DELETE FROM kafka.users WHERE name = %s", (name,))
        if not gone.rowcount:
            raise _unknown(name)
        cursor = await connection.execute("SELECT count(*) FROM kafka.users")
        (left,) = await cursor.fetchone() or (0,)
    return int(left)


async def users(dsn: str) -> list[tuple[str, bool, int]]:
    """Names, whether they are superusers, and how many rules they have."""
    async with _tables(dsn) as connection:
        return await (await connection.execute(_USERS)).fetchall()


async def allow(dsn: str, rules: Sequence[Rule]) -> None:
    """Add rules; those that are there stay."""
    async with _tables(dsn) as connection, connection.transaction():
        for rule in rules:
            rule.check()
            rows = [(rule.user, rule.resource, rule.pattern, each) for each in rule.operations]
            query = "INSERT INTO kafka.acls VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
            try:
                await connection.cursor().executemany(query, rows)
            except psycopg.errors.ForeignKeyViolation as error:
                raise _unknown(rule.user) from error


async def forbid(dsn: str, rules: Sequence[Rule]) -> int:
    """Remove rules; how many there were."""
    gone = 0
    async with _tables(dsn) as connection, connection.transaction():
        for rule in rules:
            rule.check()
            operations = list(rule.operations or Operation)
            values = (rule.user, rule.resource, rule.pattern, operations)
            gone += (await connection.execute(_REVOKE, values)).rowcount
    return gone


async def rules(dsn: str, user: str | None = None) -> list[Rule]:
    """All of them, or those of a user."""
    async with _tables(dsn) as connection:
        rows = await (await connection.execute(_RULES, {"user": user})).fetchall()
    return [
        Rule(
            user=name,
            resource=Resource(resource),
            pattern=pattern,
            operations=tuple(Operation(each) for each in operations.split(",")),
        )
        for name, resource, pattern, operations in rows
    ]


def _unknown(name: str) -> ConfigError:
    return ConfigError(f"there is no user {name}", hint="See: tailrace broker user list")


@asynccontextmanager
async def _tables(dsn: str) -> AsyncIterator[Connection]:
    """A connection, once it is clear that there are tables."""
    async with await connect(dsn, name="broker accounts") as connection:
        try:
            cursor = await connection.execute("SELECT to_regclass('kafka.acls')")
            if await cursor.fetchone() == (None,):
                raise ConfigError(
                    "the database has no tables for users",
                    hint="Make the tables: tailrace broker --init",
                )
            yield connection
        except psycopg.Error as error:
            raise translate(error) from error
