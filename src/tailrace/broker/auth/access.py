"""Users and their ACLs, read from the tables and held in memory.

A user without rules may do nothing. While there are no users at all, clients need no login and may
do everything; the broker then listens on loopback only.
"""

from __future__ import annotations

import enum
import hmac
import secrets
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tailrace.broker.auth import scram

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_USERS = "SELECT name, superuser FROM kafka.users"
_CREDENTIALS = (
    "SELECT user_name, mechanism, salt, iterations, stored_key, server_key FROM kafka.credentials"
)
_RULES = "SELECT principal, resource, pattern, operation FROM kafka.acls"
_SECRET = "SELECT value FROM kafka.secrets WHERE name = 'salts'"  # noqa: S105 - a query


class Resource(enum.StrEnum):
    """The kind of resource that a rule applies to."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


class Operation(enum.StrEnum):
    """An operation that a rule allows, with Kafka's names."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    DESCRIBE_CONFIGS = "describe_configs"
    ALTER_CONFIGS = "alter_configs"
    IDEMPOTENT_WRITE = "idempotent_write"
    ALL = "all"


_TOPIC = frozenset(Operation) - {Operation.IDEMPOTENT_WRITE}
OPERATIONS = {
    Resource.TOPIC: _TOPIC,
    Resource.GROUP: frozenset(
        {Operation.READ, Operation.DESCRIBE, Operation.DELETE, Operation.ALL}
    ),
    Resource.CLUSTER: frozenset(
        {
            Operation.CREATE,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
            Operation.ALL,
        }
    ),
}
"""The operations of each kind of resource."""
_IMPLIED = {
    Operation.READ: {Operation.DESCRIBE},
    Operation.WRITE: {Operation.DESCRIBE},
    Operation.DELETE: {Operation.DESCRIBE},
    Operation.ALTER: {Operation.DESCRIBE},
    Operation.ALTER_CONFIGS: {Operation.DESCRIBE_CONFIGS},
}
"""Operations that a rule allows in addition, as in Kafka."""
CLUSTER = "kafka-cluster"
"""The name of the only cluster resource, as in Kafka."""


@dataclass(slots=True)
class _Patterns:
    """The names that a user may perform one operation on."""

    names: set[str] = field(default_factory=set)
    prefixes: tuple[str, ...] = ()
    """The pattern `*` is the empty prefix."""

    def add(self, pattern: str) -> None:
        if pattern.endswith("*"):
            self.prefixes = (*self.prefixes, pattern[:-1])
        else:
            self.names.add(pattern)

    def match(self, name: str) -> bool:
        return name in self.names or name.startswith(self.prefixes)


@dataclass(slots=True, kw_only=True, repr=False)
class User:
    """A user that can log in."""

    name: str
    superuser: bool
    keys: dict[str, scram.Keys] = field(default_factory=dict)
    """By mechanism."""
    rules: dict[tuple[Resource, Operation], _Patterns] = field(
        default_factory=lambda: defaultdict(_Patterns)
    )

    def allow(self, resource: Resource, pattern: str, operation: Operation) -> None:
        """Add a rule, with the operations that it implies."""
        allowed = OPERATIONS[resource] if operation is Operation.ALL else {operation}
        for one in allowed:
            for implied in {one} | _IMPLIED.get(one, set()):
                self.rules[resource, implied].add(pattern)

    def may(self, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether a rule allows this."""
        patterns = self.rules.get((resource, operation))
        return self.superuser or (patterns is not None and patterns.match(name))

    def may_any(self, operation: Operation, resource: Resource) -> bool:
        """Whether a rule allows this for at least one name."""
        return self.superuser or (resource, operation) in self.rules


class Access:
    """All users and rules. The broker refreshes them after every change in the tables."""

    def __init__(self) -> None:
        self.users: dict[str, User] = {}
        self._secret = secrets.token_bytes(32)

    async def refresh(self, connection: AsyncConnection[Any]) -> None:
        """Read all users and rules, from one snapshot."""
        async with connection.transaction():
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            users = await (await connection.execute(_USERS)).fetchall()
            credentials = await (await connection.execute(_CREDENTIALS)).fetchall()
            rules = await (await connection.execute(_RULES)).fetchall()
            secret = await (await connection.execute(_SECRET)).fetchone()
        by_name = {name: User(name=name, superuser=superuser) for name, superuser in users}
        for name, mechanism, salt, iterations, stored, server in credentials:
            by_name[name].keys[mechanism] = scram.Keys(
                salt=salt, iterations=iterations, stored=stored, server=server
            )
        for name, resource, pattern, operation in rules:
            by_name[name].allow(Resource(resource), pattern, Operation(operation))
        self.users = by_name
        self._secret = secret[0] if secret is not None else self._secret

    def keys(self, name: str, mechanism: str) -> scram.Keys:
        """The keys of a user. An unknown user has fake keys that no password matches.

        The fake keys are the same at every attempt, also after a restart, so a client cannot find
        out which users exist.
        """
        user = self.users.get(name)
        if user is not None and mechanism in user.keys:
            return user.keys[mechanism]

        def fake(purpose: str) -> bytes:
            text = f"{purpose}:{mechanism}:{name}".encode(errors="surrogatepass")
            return hmac.digest(self._secret, text, scram.HASHES[mechanism])

        return scram.Keys(
            salt=fake("salt")[: scram.SALT_BYTES],
            iterations=scram.ITERATIONS,
            stored=fake("stored"),
            server=fake("server"),
        )
