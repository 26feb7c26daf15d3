"""Settings of the sinks for OpenSearch and Elasticsearch, and names of indices."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tailrace.change import Op
from tailrace.sinks.registry import SINKS
from tailrace.sinks.search.destination import IndexTemplate, is_index, target_of, token
from tailrace.sinks.search.settings import Node

URL = "https://search.example.com"
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=63).filter(
    lambda name: len(name.encode()) <= 63
)
"""PostgreSQL's names have at most 63 bytes."""


def settings(kind: str = "opensearch", **keys: Any) -> Any:
    return SINKS.find(kind).settings.model_validate({"type": kind, "url": URL, **keys})


@given(NAMES, NAMES, NAMES, NAMES)
def test_two_tables_never_share_an_index(schema: str, table: str, other: str, last: str) -> None:
    template = IndexTemplate("{schema}.{table}", database="shop")
    first, second = (template.fill(*names, Op.INSERT) for names in ((schema, table), (other, last)))
    assert is_index(first)
    assert (first == second) == ((schema, table) == (other, last))


@given(NAMES)
def test_a_name_alone_is_an_index(name: str) -> None:
    assert is_index(token(name))


def test_long_names_are_cut_and_stay_different() -> None:
    template = IndexTemplate("SET {table}", database="shop")
    first, second = (template.fill("public", "T" * 90 + end, Op.DELETE) for end in ("a", "b"))
    assert first != second
    for each in (first, second):
        target = target_of(each.encode())
        assert target.deletes
        assert len(target.name) == 255
        assert is_index(target.name)


def test_several_nodes() -> None:
    found = settings(url="https://a.example:9201, https://b.example/search/")
    assert found.nodes == [
        Node("https", "a.example", 9201, ""),
        Node("https", "b.example", 443, "/search"),
    ]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"url": "search.example.com"}, "must be http://"),
        ({"url": "https://a,http://b"}, "all http://"),
        ({"url": "https://ann:secret@a"}, "must not contain a user"),
        ({"url": "https://a?x=1"}, "query"),
        ({"user": "ann"}, "must be set together"),
        ({"user": "ann", "password": "s", "token": "t"}, "only one of password, token"),
        ({"url": "http://a.example", "token": "t"}, "unencrypted"),
        ({"url": "http://127.0.0.1:9200", "tls_ca": "/x"}, "need https://"),
        ({"tls_key": "/x"}, "must be set together"),
        ({"index": "Orders"}, "name of an index"),
        ({"index": "_orders"}, "name of an index"),
        ({"index": "cdc-{operation}"}, "same index"),
        ({"histories": "A"}, "name of an index"),
        ({"payload": "binary"}, "`mode: append`"),
        ({"mode": "append", "truncate": "ignore"}, "`mode: documents`"),
        ({"api_key": "k"}, "api_key"),
    ],
)
def test_what_does_not_fit_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        settings(**keys)
    assert "secret" not in str(caught.value)


def test_credentials_on_loopback_and_keys_of_elasticsearch() -> None:
    local = settings(url="http://127.0.0.1:9200", user="ann", password="s")
    assert local.authorizations == {"password": "Basic"}
    assert settings("elasticsearch", api_key="k").authorizations == {"api_key": "ApiKey"}
    assert "topsecret" not in repr(settings(user="ann", password="topsecret"))


@pytest.mark.parametrize(
    ("keys", "shape", "encoding", "fits"),
    [
        ({}, "row", "json", True),
        ({}, "plain", "json", False),
        ({}, "row", "msgpack", False),
        ({"mode": "append"}, "plain", "json", True),
        ({"mode": "append"}, "plain", "msgpack", False),
        ({"mode": "append", "payload": "binary"}, "bridge", "msgpack", True),
    ],
)
def test_shapes_that_fit(keys: dict[str, Any], shape: str, encoding: str, fits: bool) -> None:
    for kind in ("opensearch", "elasticsearch"):
        why = SINKS.find(kind).misfit(settings(kind, **keys), shape=shape, encoding=encoding)
        assert (why == "") == fits


def test_destinations_are_checked() -> None:
    sink = SINKS.find("opensearch")
    found = list(sink.check_destinations(settings(), ["DEL a.b", "A", "a.b"]))
    assert [each.finding for each in found] == ["'A' is not the name of an index"]
