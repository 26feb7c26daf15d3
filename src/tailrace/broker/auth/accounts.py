"""Commands of operators: add, change, remove and list users and rules in the tables.

A trigger notifies a running broker of every change. Passwords are not stored: PostgreSQL gets keys
that are derived from them.
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

_MAX_NAME = 256
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
    """Operations that a user may perform on resources whose names match a pattern."""

    user: str
    resource: Resource
    pattern: str
    operations: tuple[Operation, ...]

    def check(self) -> None:
        """An error if the rule is invalid."""
        for operation in self.operations:
            if operation not in OPERATIONS[self.resource]:
                known = ", ".join(sorted(OPERATIONS[self.resource]))
                raise ConfigError(
                    f"operation {operation} does not exist for a {self.resource}",
                    hint=f"Use one of: {known}",
                )
        at = self.pattern.find("*")
        if not self.pattern or 0 <= at < len(self.pattern) - 1:
            raise ConfigError(
                f"invalid pattern {self.pattern!r}",
                hint="Use a name, a prefix such as 'orders*', or '*'.",
            )
        if self.resource is Resource.CLUSTER and self.pattern not in ("*", CLUSTER):
            raise ConfigError(f"pattern of the cluster must be *, got {self.pattern!r}")


async def add_user(dsn: str, name: str, password: str, *, superuser: bool | None) -> bool:
    """Add a user, or change the password of an existing one. Returns whether the user is new."""
    if not 0 < len(name) <= _MAX_NAME or "\0" in name:
        raise ConfigError(f"user name must have 1 to {_MAX_NAME} characters, without NUL")
    if not password or "\0" in password:
        raise ConfigError("password must not be empty or contain NUL")
    async with _tables(dsn) as connection, connection.transaction():
        cursor = await connection.execute(_ADD, {"name": name, "superuser": superuser})
        (new,) = await cursor.fetchone() or (False,)
        for mechanism in scram.HASHES:
            keys = scram.keys(mechanism, password, secrets.token_bytes(scram.SALT_BYTES))
            values = (name, mechanism, keys.salt, keys.iterations, keys.stored, keys.server)
            await connection.execute(_KEYS, values)
    return bool(new)


async def remove_user(dsn: str, name: str) -> int:
    """Remove a user with all its rules. Returns how many users remain."""
    async with _tables(dsn) as connection, connection.transaction():
        deleted = await connection.execute("DELETE FROM kafka.users WHERE name = %s", (name,))
        if not deleted.rowcount:
            raise _unknown(name)
        cursor = await connection.execute("SELECT count(*) FROM kafka.users")
        (remaining,) = await cursor.fetchone() or (0,)
    return int(remaining)


async def users(dsn: str) -> list[tuple[str, bool, int]]:
    """Name, whether it is a superuser, and the number of rules, per user."""
    async with _tables(dsn) as connection:
        return await (await connection.execute(_USERS)).fetchall()


async def allow(dsn: str, rules: Sequence[Rule]) -> None:
    """Add rules. Existing rules are unchanged."""
    async with _tables(dsn) as connection, connection.transaction():
        for rule in rules:
            rule.check()
            rows = [(rule.user, rule.resource, rule.pattern, one) for one in rule.operations]
            query = "INSERT INTO kafka.acls VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
            try:
                await connection.cursor().executemany(query, rows)
            except psycopg.errors.ForeignKeyViolation as error:
                raise _unknown(rule.user) from error


async def revoke(dsn: str, rules: Sequence[Rule]) -> int:
    """Remove rules. Returns the number of removed operations."""
    removed = 0
    async with _tables(dsn) as connection, connection.transaction():
        for rule in rules:
            rule.check()
            operations = list(rule.operations or Operation)
            values = (rule.user, rule.resource, rule.pattern, operations)
            removed += (await connection.execute(_REVOKE, values)).rowcount
    return removed


async def rules(dsn: str, user: str | None = None) -> list[Rule]:
    """All rules, or those of one user."""
    async with _tables(dsn) as connection:
        rows = await (await connection.execute(_RULES, {"user": user})).fetchall()
    return [
        Rule(
            user=name,
            resource=Resource(resource),
            pattern=pattern,
            operations=tuple(Operation(one) for one in operations.split(",")),
        )
        for name, resource, pattern, operations in rows
    ]


def _unknown(name: str) -> ConfigError:
    return ConfigError(f"unknown user {name}", hint="List users: tailrace broker user list")


@asynccontextmanager
async def _tables(dsn: str) -> AsyncIterator[Connection]:
    """A connection to a database that has the tables."""
    async with await connect(dsn, name="broker accounts") as connection:
        try:
            cursor = await connection.execute("SELECT to_regclass('kafka.acls')")
            if await cursor.fetchone() == (None,):
                raise ConfigError(
                    "the tables of the broker are missing in this database",
                    hint="Create them: tailrace broker --init",
                )
            yield connection
        except psycopg.Error as error:
            raise translate(error) from error
