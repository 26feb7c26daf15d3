"""Who may do what: users and their rules, as the tables have them, kept in memory.

There is one rule for everybody who has none: nothing is allowed. As long as there are no users at
all nobody logs in, and everybody may do everything; that is for loopback alone.
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
    """What a rule is about."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


class Operation(enum.StrEnum):
    """What a rule allows, in Kafka's words."""

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
"""Which operations a resource has."""
_IMPLIED = {
    Operation.READ: {Operation.DESCRIBE},
    Operation.WRITE: {Operation.DESCRIBE},
    Operation.DELETE: {Operation.DESCRIBE},
    Operation.ALTER: {Operation.DESCRIBE},
    Operation.ALTER_CONFIGS: {Operation.DESCRIBE_CONFIGS},
}
CLUSTER = "kafka-cluster"
"""The name of the only resource of its kind, as in Kafka."""


@dataclass(slots=True)
class _Patterns:
    """Names that a user may do one thing with."""

    names: set[str] = field(default_factory=set)
    prefixes: tuple[str, ...] = ()
    """Of no letters if it is any name."""

    def add(self, pattern: str) -> None:
        if pattern.endswith("*"):
            self.prefixes = (*self.prefixes, pattern[:-1])
        else:
            self.names.add(pattern)

    def match(self, name: str) -> bool:
        return name in self.names or name.startswith(self.prefixes)


@dataclass(slots=True, kw_only=True, repr=False)
class User:
    """Who may log in."""

    name: str
    superuser: bool
    keys: dict[str, scram.Keys] = field(default_factory=dict)
    """By mechanism."""
    rules: dict[tuple[Resource, Operation], _Patterns] = field(
        default_factory=lambda: defaultdict(_Patterns)
    )

    def allow(self, resource: Resource, pattern: str, operation: Operation) -> None:
        """A rule, with all that follows from it."""
        meant = OPERATIONS[resource] if operation is Operation.ALL else {operation}
        for each in meant:
            for implied in {each} | _IMPLIED.get(each, set()):
                self.rules[resource, implied].add(pattern)

    def may(self, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether a rule says so."""
        found = self.rules.get((resource, operation))
        return self.superuser or (found is not None and found.match(name))

    def may_any(self, operation: Operation, resource: Resource) -> bool:
        """Whether there is anything that a rule says so of."""
        return self.superuser or (resource, operation) in self.rules


class Access:
    """What is known of users and rules; read again whenever somebody has changed them."""

    def __init__(self) -> None:
        self.users: dict[str, User] = {}
        self._secret = secrets.token_bytes(32)

    async def refresh(self, connection: AsyncConnection[Any]) -> None:
        """Read them all, as of one moment."""
        async with connection.transaction():
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            users = await (await connection.execute(_USERS)).fetchall()
            credentials = await (await connection.execute(_CREDENTIALS)).fetchall()
            rules = await (await connection.execute(_RULES)).fetchall()
            secret = await (await connection.execute(_SECRET)).fetchone()
        found = {name: User(name=name, superuser=superuser) for name, superuser in users}
        for name, mechanism, salt, iterations, stored, server in credentials:
            found[name].keys[mechanism] = scram.Keys(
                salt=salt, iterations=iterations, stored=stored, server=server
            )
        for name, resource, pattern, operation in rules:
            found[name].allow(Resource(resource), pattern, Operation(operation))
        self.users = found
        self._secret = secret[0] if secret is not None else self._secret

    def keys(self, name: str, mechanism: str) -> scram.Keys:
        """Of a user; made up for one that there is not, and the same at every attempt.

        So nobody learns by trying which users there are: no password fits the keys.
        """
        user = self.users.get(name)
        if user is not None and mechanism in user.keys:
            return user.keys[mechanism]

        def made_up(purpose: str) -> bytes:
            text = f"{purpose}:{mechanism}:{name}".encode(errors="surrogatepass")
            return hmac.digest(self._secret, text, scram.HASHES[mechanism])

        return scram.Keys(
            salt=made_up("salt")[: scram.SALT_BYTES],
            iterations=scram.ITERATIONS,
            stored=made_up("stored"),
            server=made_up("server"),
        )
