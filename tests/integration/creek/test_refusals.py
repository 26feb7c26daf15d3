"""Invalid requests get an answer from a running producer; a request for an unknown schema none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import nats.errors
import pytest

from tests.integration.creek.system import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.msg import Msg

    from tests.fix_postgres import Database
    from tests.integration.creek.system import Producer


def _status(reply: Msg) -> str:
    return (reply.headers or {})["Nats-Service-Error-Code"]


@pytest.mark.long
def test_answers_to_invalid_requests(database: Database, producer: Callable[..., Producer]) -> None:
    database.execute("CREATE TABLE shown (id int PRIMARY KEY); CREATE TABLE hidden (id int)")
    running = producer("public.shown")
    name = database.name

    def asked(database: str = name, namespace: str = "public", table: str = "shown") -> bytes:
        fields = {"database": database, "namespace": namespace, "table": table}
        return msgspec.json.encode(fields)

    wrong = [
        ("_schema", b"", "400"),
        ("_schemas", b"no fingerprint", "400"),
        ("_snapshot", b"", "400"),
        ("_snapshot", b"{", "400"),
        ("_snapshot", b"[]", "400"),
        ("_snapshot", b'{"database": 1}', "400"),
        ("_snapshot", asked(table="nowhere"), "404"),
        ("_snapshot", asked(table="hidden"), "404"),
        ("_snapshot", asked(namespace="elsewhere"), "404"),
        ("_snapshot", asked(database="another"), "404"),
    ]
    for subject, body, status in wrong:
        # 503: a busy machine took more than the half second that clients wait.
        reply = running.request(f"{NAMESPACE}.{subject}", body)
        while _status(reply) == "503":
            reply = running.request(f"{NAMESPACE}.{subject}", body)
        assert _status(reply) == status, (subject, body)
        content = msgspec.json.decode(reply.data)
        assert content["error"]
        assert content["code"]
    with pytest.raises(nats.errors.TimeoutError):
        running.request(f"{NAMESPACE}._schemas", b"Sykce18MgAQ=", timeout_s=3.0)
    topic = running.request(f"{NAMESPACE}._snapshot", asked()).data.decode()
    assert topic.startswith(running.subject("snap", "shown") + ".")
