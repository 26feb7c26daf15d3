"""Settings of the sink `http`: what is refused, and why."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tailrace.change import Op
from tailrace.sinks.http.destination import PathTemplate
from tailrace.sinks.http.settings import HttpSink

URL = "https://example.com/hook"


def settings(**keys: Any) -> HttpSink:
    return HttpSink.model_validate({"type": "http", "url": URL, **keys})


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"url": "ftp://example.com"}, "must be an http:// or https:// URL"),
        ({"url": "https://"}, "must be an http:// or https:// URL"),
        ({"url": "https://ann:x@example.com"}, "must not contain a user"),
        ({"url": "https://example.com/?a=1"}, "must not contain a query"),
        ({"path": "orders"}, "must start with `/`"),
        ({"headers": {"a b": "x"}}, "is not a valid header"),
        ({"headers": {"a": "x\r\nb: y"}}, "is not a valid header"),
        ({"headers": {"Webhook-Id": "x"}}, "the sink sets it"),
        ({"headers": {"a": "x "}}, "is not a valid header"),
        ({"headers": {"a": ""}}, "is not a valid header"),
        ({"content_type": "a\nb"}, "must be a content type"),
        ({"url": "https://example.com:99999/"}, "must be an http:// or https:// URL"),
        ({"url": "https://example.com/a b"}, "must be an http:// or https:// URL"),
        ({"secret": "whsec_abc"}, "24 to 64 bytes in Base64"),
        ({"batch_rows": 2}, "needs `body: array`"),
        ({"body": "array", "content_type": "text/plain"}, "needs the content type"),
        ({"tls_certificate": "a.pem"}, "must be set together"),
        ({"url": "http://example.com", "headers": {"a": "b"}}, "sent unencrypted"),
    ],
)
def test_invalid_settings(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        settings(**keys)


def test_secrets_are_not_shown() -> None:
    made = settings(headers={"Authorization": "Bearer hidden"}, secret="whsec_" + "aGlk" * 8)
    assert "hidden" not in repr(made)
    assert "aGlk" not in repr(made)
    assert "/hook" not in repr(made)
    assert settings(url="http://localhost:1", headers={"a": "b"}).headers


def test_paths() -> None:
    assert settings().template == "/"
    template = PathTemplate(settings(path="/{table}/{operation}").template, database="shop")
    assert template.fill("public", "orders", Op.DELETE) == "/orders/delete"
    assert template.fill("my app", "a/b", Op.INSERT) == "/my%20app.a%2Fb/insert"
