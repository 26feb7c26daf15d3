"""Rules: the operations that they allow and imply, and no others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.auth.access import CLUSTER, OPERATIONS, Access, Operation, Resource, User
from tailrace.broker.auth.accounts import Rule
from tailrace.errors import ConfigError

RULES = st.sampled_from(
    [(resource, operation) for resource, known in OPERATIONS.items() for operation in sorted(known)]
)
NAMES = st.text("ab", min_size=1, max_size=3)


@given(st.lists(st.tuples(RULES, NAMES, st.sampled_from(["", "*"]))), st.booleans(), RULES, NAMES)
def test_operations_without_a_rule_are_denied(
    rules: list[tuple[tuple[Resource, Operation], str, str]],
    anything: bool,
    asked: tuple[Resource, Operation],
    name: str,
) -> None:
    user = User(name="ann", superuser=False)
    if anything:
        rules = [*rules, ((Resource.GROUP, Operation.READ), "", "*")]
    for (resource, operation), pattern, star in rules:
        user.allow(resource, pattern + star, operation)
    resource, operation = asked
    implied_by = {operation, Operation.ALL}
    if operation is Operation.DESCRIBE:
        implied_by |= {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    if operation is Operation.DESCRIBE_CONFIGS:
        implied_by |= {Operation.ALTER_CONFIGS}
    expected = any(
        rule == resource
        and given in implied_by
        and (name.startswith(pattern) if star else name == pattern)
        for (rule, given), pattern, star in rules
    )
    assert user.may(operation, resource, name) == expected
    assert not expected or user.may_any(operation, resource)
    assert User(name="ann", superuser=True).may(operation, resource, name)


def test_unknown_users_have_stable_fake_keys() -> None:
    access = Access()
    found = access.keys("nobody", "SCRAM-SHA-256")
    assert found == access.keys("nobody", "SCRAM-SHA-256")
    assert found.salt != access.keys("somebody", "SCRAM-SHA-256").salt
    assert found.salt != access.keys("nobody", "SCRAM-SHA-512").salt
    assert (len(found.salt), len(found.stored), found.iterations) == (24, 32, 4096)


@pytest.mark.parametrize(
    ("resource", "pattern", "operation"),
    [
        (Resource.GROUP, "g", Operation.WRITE),
        (Resource.TOPIC, "t", Operation.IDEMPOTENT_WRITE),
        (Resource.TOPIC, "", Operation.READ),
        (Resource.TOPIC, "a*b", Operation.READ),
        (Resource.TOPIC, "**", Operation.READ),
        (Resource.CLUSTER, "other", Operation.CREATE),
    ],
)
def test_invalid_rules_are_refused(resource: Resource, pattern: str, operation: Operation) -> None:
    rule = Rule(user="ann", resource=resource, pattern=pattern, operations=(operation,))
    with pytest.raises(ConfigError):
        rule.check()


def test_secrets_are_not_in_repr() -> None:
    user = User(name="ann", superuser=False)
    user.keys["SCRAM-SHA-256"] = Access().keys("ann", "SCRAM-SHA-256")
    assert "salt" not in repr(user) + repr(user.keys)
    user.allow(Resource.CLUSTER, "*", Operation.CREATE)
    assert user.may(Operation.CREATE, Resource.CLUSTER, CLUSTER)
