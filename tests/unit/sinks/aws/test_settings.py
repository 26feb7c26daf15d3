from __future__ import annotations

from typing import Any

import pytest

from tailrace.change import Op
from tailrace.config import load
from tailrace.errors import ConfigError
from tailrace.sinks.registry import SINKS

GIVEN: dict[str, dict[str, Any]] = {
    "sqs": {"queue": "{schema}-{table}.fifo"},
    "sns": {"topic": "arn:aws:sns:eu-central-1:123456789012:{schema}-{table}"},
    "kinesis": {"stream": "{schema}-{table}"},
    "eventbridge": {},
}
KEYS = {"access_key_id": "AKIA", "secret_access_key": "planted-secret"}


def of(kind: str = "sqs", **keys: Any) -> Any:
    sink = {"type": kind, **GIVEN[kind], **keys}
    return load(None, {"pipelines": {"p": {"sink": sink}}}).pipelines["p"].sink


@pytest.mark.parametrize(
    ("kind", "destination"),
    [
        ("sqs", "public-odd--20name.fifo"),
        ("sns", "arn:aws:sns:eu-central-1:123456789012:public-odd--20name"),
        ("kinesis", "public-odd--20name"),
        ("eventbridge", "default public.odd--20name.insert"),
    ],
)
def test_names_are_escaped_so_that_the_service_takes_them(kind: str, destination: str) -> None:
    sink = SINKS.find(kind)
    settings = of(kind)
    template = sink.destination(settings.template, database="shop")
    assert template.fill("public", "odd name", Op.INSERT) == destination


def test_no_two_tables_have_the_same_queue() -> None:
    template = SINKS.find("sqs").destination("{table}", database="shop")
    pairs = [("public", "a-b"), ("a", "b"), ("public", "a--b"), ("a-", "b"), ("a", "-b"),
             ("public", "a.b"), ("public", "a--2Db"), ("public", "a2Db")]  # fmt: skip
    names = [template.fill(schema, table, Op.INSERT) for schema, table in pairs]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"access_key_id": "AKIA"}, "must be set together"),
        ({"secret_access_key": "planted-secret"}, "must be set together"),
        ({"session_token": "planted-secret"}, "`session_token` needs an `access_key_id`"),
        ({**KEYS, "profile": "work"}, "`profile` and `access_key_id` cannot be combined"),
        ({"external_id": "planted-secret"}, "`external_id` needs a `role_arn`"),
        ({"role_arn": "admin"}, "must be the ARN of a role"),
        ({"region": "Frankfurt"}, "must be a region such as eu-central-1"),
        ({"endpoint_url": "localhost:4566"}, "must be an http:// or https:// URL"),
        ({"endpoint_url": "https://a:b@example.com"}, "must not contain a user"),
        ({**KEYS, "endpoint_url": "http://10.0.0.1:4566"}, "unencrypted connection"),
        ({"batch_rows": 11}, "less than or equal to 10"),
        ({"batch_bytes": "2MiB"}, "less than or equal to 1048576"),
    ],
)
def test_what_cannot_be_is_refused_and_no_secret_is_shown(
    keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        of(**keys)
    assert "planted-secret" not in str(caught.value)


def test_a_topic_is_an_arn() -> None:
    with pytest.raises(ConfigError, match=r"sink\.topic: must be an ARN"):
        of("sns", topic="orders")


def test_a_source_is_not_of_aws() -> None:
    with pytest.raises(ConfigError, match=r"sink\.source: must not start with `aws\.`"):
        of("eventbridge", source="aws.s3")


@pytest.mark.parametrize("kind", GIVEN)
def test_secrets_are_not_shown(kind: str) -> None:
    role = {"role_arn": "arn:aws:iam::123456789012:role/cdc", "external_id": "planted-secret"}
    shown = repr(of(kind, **KEYS, **role, session_token="planted-secret"))
    assert "AKIA" in shown
    assert "planted-secret" not in shown
