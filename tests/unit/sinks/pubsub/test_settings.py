from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.change import Op
from tailrace.config import load
from tailrace.errors import ConfigError
from tailrace.sinks.pubsub.destination import LONGEST, topic_of
from tailrace.sinks.registry import SINKS

# From the documentation of Pub/Sub.
TAKEN = re.compile(r"[A-Za-z][A-Za-z0-9\-._~+%]{2,254}")
NAMES = st.text(st.characters(codec="utf-8"), max_size=63)


def of(**keys: Any) -> Any:
    sink = {"type": "pubsub", "project": "shop-1", "topic": "{schema}-{table}", **keys}
    return load(None, {"pipelines": {"p": {"sink": sink}}}).pipelines["p"].sink


def fill(template: str, schema: str, table: str) -> str:
    return (
        SINKS.find("pubsub").destination(template, database="shop").fill(schema, table, Op.INSERT)
    )


def test_names_are_escaped_so_that_the_service_takes_them() -> None:
    assert fill(of().template, "public", "odd name") == "public-odd%20name"
    assert fill("projects/other/topics/{table}", "a", "b") == "projects/other/topics/a.b"


@given(NAMES, NAMES)
def test_every_name_becomes_a_topic(schema: str, table: str) -> None:
    topic = fill("cdc-{schema}-{table}", schema, table)
    assert TAKEN.fullmatch(topic)
    assert topic_of(topic, "shop-1") == ("shop-1", topic)


def test_a_long_name_is_cut_and_stays_different() -> None:
    one, other = (fill("projects/p-1/topics/{table}", "é" * 60, end * 60) for end in "éè")
    assert one != other
    assert {len(each.rpartition("/")[2]) for each in (one, other)} == {LONGEST}


def test_no_two_tables_have_the_same_topic() -> None:
    pairs = [("public", "a.b"), ("a", "b"), ("public", "a%b"), ("a.", "b"), ("a", ".b"),
             ("public", "a-b"), ("public", "a%2Eb"), ("public", "a2Eb")]  # fmt: skip
    names = [fill("{table}", schema, table) for schema, table in pairs]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("destination", "valid"),
    [
        ("orders", True),
        ("o-._~+%9", True),
        ("projects/a-project/topics/orders", True),
        ("projects/example.com:a-project/topics/orders", True),
        ("Goog", True),
        ("goog", False),
        ("google-orders", False),
        ("it", False),
        ("9orders", False),
        ("_orders", False),
        ("a b c", False),
        ("é-orders", False),
        ("orders/1", False),
        ("projects/a-project/topics/goog1", False),
        ("projects//topics/orders", False),
        ("projects/a-project/subscriptions/orders", False),
        ("a" * 255, True),
        ("a" * 256, False),
        ("", False),
    ],
)
def test_topics(destination: str, valid: bool) -> None:
    assert (topic_of(destination, "shop-1") is not None) is valid


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"project": "Shop"}, "must be the id of a project"),
        ({"topic": ""}, "at least 1 character"),
        ({"endpoint_url": "localhost:8085"}, "must be an http:// or https:// URL"),
        ({"endpoint_url": "https://"}, "must be an http:// or https:// URL"),
        ({"endpoint_url": "https://a:b@example.com"}, "must have a host and a port only"),
        ({"endpoint_url": "https://example.com/v1"}, "must have a host and a port only"),
        (
            {"endpoint_url": "http://localhost:8085", "credentials_file": "key.json"},
            "`credentials_file` cannot be combined with an http:// endpoint_url",
        ),
        (
            {"endpoint_url": "http://localhost:8085", "tls_ca": "ca.crt"},
            "`tls_ca` cannot be combined with an http:// endpoint_url",
        ),
        ({"batch_rows": 1001}, "less than or equal to 1000"),
        ({"batch_bytes": "10MiB"}, "less than or equal to 10000000"),
        ({"max_message_bytes": "10MiB"}, "less than or equal to 10000000"),
        ({"concurrency": 101}, "less than or equal to 100"),
    ],
)
def test_invalid_settings_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        of(**keys)


def test_only_http_is_unencrypted() -> None:
    assert of().encrypted
    assert of(endpoint_url="https://europe-west1-pubsub.googleapis.com").encrypted
    assert not of(endpoint_url="http://localhost:8085").encrypted
