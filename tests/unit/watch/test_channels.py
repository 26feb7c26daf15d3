"""Channels against real servers: what they send, and what they say when it fails."""

from __future__ import annotations

import base64
import email
import email.policy
import hashlib
import hmac
import json
import socket
import ssl
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.config.alerts import Channel
from tailrace.errors import AlertUndeliveredError
from tailrace.testing.process import free_port
from tailrace.testing.receiver import HttpReceiver, HttpResponse
from tailrace.watch.channels import send
from tailrace.watch.message import Message
from tests.unit.watch.mailing import MailServer

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MESSAGE = Message(
    id="m1", channel="ops", kind="firing", alert="a1", check="disk", subject="log",
    severity="error", summary="4.0 % is free <now> & then", hint="Make space.",
    since="2026-01-31T12:00:00+00:00", at="2026-01-31T12:00:10+00:00", source="shop", host="db1",
)  # fmt: skip


def channel(**kind: Any) -> Channel:
    return Channel.model_validate({"timeout_s": 5, **kind})


def failure(made: Channel) -> str:
    with pytest.raises(AlertUndeliveredError) as caught:
        send(made, MESSAGE)
    return str(caught.value)


def test_a_webhook() -> None:
    """GIVEN a secret WHEN a message is sent THEN the body is the document, and the signature is
    that of Standard Webhooks."""
    with HttpReceiver() as receiver:
        url = f"{receiver.url}/hook?key=1"
        settings = {"url": url, "secret": SECRET, "authorization": "Bearer t"}
        send(channel(webhook=settings), MESSAGE)
    [request] = receiver.requests
    assert (request.method, request.path, request.id) == ("POST", "/hook?key=1", "m1")
    assert request.headers["authorization"] == "Bearer t"
    document = json.loads(request.body)
    assert document["alert"] == "a1"
    assert "channel" not in document
    assert document["version"] == 1
    signed = b"m1.%s.%s" % (request.headers["webhook-timestamp"].encode(), request.body)
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert request.headers["webhook-signature"] == f"v1,{expected}"


def test_a_webhook_without_a_secret_is_not_signed() -> None:
    with HttpReceiver() as receiver:
        send(channel(webhook={"url": receiver.url}), MESSAGE)
    assert "webhook-signature" not in receiver.requests[0].headers


@pytest.mark.parametrize("status", [301, 400, 404, 500])
def test_an_answer_but_2xx_is_a_failure(status: int) -> None:
    elsewhere = {"location": "http://localhost:1/"}
    with HttpReceiver(lambda _: HttpResponse(status=status, headers=elsewhere)) as receiver:
        made = channel(webhook={"url": f"{receiver.url}/s3cret-path"})
        assert failure(made) == f"the receiver answered {status}"


def test_no_receiver() -> None:
    made = channel(webhook={"url": f"http://u:s3cret@127.0.0.1:{free_port()}/s3cret"})
    assert failure(made) == "the receiver cannot be reached: Connection refused"


def test_a_receiver_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/s3cret"
        assert failure(channel(webhook={"url": url}, timeout_s=0.2)) == "no answer within 0.2 s"


def test_certificates_are_verified(certificates: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    with HttpReceiver(context=context) as receiver:
        made = channel(webhook={"url": receiver.url, "tls_ca": str(certificates / "other.crt")})
        assert failure(made) == "TLS failed: CERTIFICATE_VERIFY_FAILED"
        send(
            channel(webhook={"url": receiver.url, "tls_ca": str(certificates / "ca.crt")}), MESSAGE
        )
    assert len(receiver.requests) == 1


def test_slack() -> None:
    with HttpReceiver() as receiver:
        send(channel(slack={"url": f"{receiver.url}/services/T/B/x"}), MESSAGE)
    [request] = receiver.requests
    body = json.loads(request.body)
    assert body["text"] == "Tailrace shop on db1: error: disk log"
    [attachment] = body["attachments"]
    assert attachment["color"] == "danger"
    assert "&lt;now&gt; &amp; then" in attachment["text"]


@pytest.mark.parametrize("implicit", [False, True])
def test_mail_over_tls_with_a_login(certificates: Path, implicit: bool) -> None:
    """GIVEN STARTTLS, or TLS from the start WHEN a mail is sent THEN nothing but the greeting was
    in clear text."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    login = ("tail", "s3cret")
    with MailServer(context=context, implicit=implicit, login=login) as server:
        settings = {
            "host": "localhost", "port": server.port, "tls": "tls" if implicit else "starttls",
            "tls_ca": str(certificates / "ca.crt"), "user": "tail", "password": "s3cret",
            "sender": "tail@example.org", "to": ["ops@example.org", "dba@example.org"],
        }  # fmt: skip
        send(channel(email=settings), MESSAGE)
        [mail] = server.mails
        assert mail.encrypted
        assert mail.user == "tail"
        assert len(mail.recipients) == 2
        assert [each.split(" ")[0].upper() for each in server.said] == (
            [] if implicit else ["EHLO", "STARTTLS"]
        )
        parsed = email.message_from_string(mail.content, policy=email.policy.default)
        assert parsed["Subject"] == "Tailrace shop on db1: error: disk log"
        assert parsed["Message-ID"] == "<m1@tailrace>"
        assert '"alert": "a1"' in parsed.get_content()
        wrong = {**settings, "password": "wr0ng"}
        assert failure(channel(email=wrong)) == "the mail server answered 535"
        other = {**settings, "tls_ca": str(certificates / "other.crt")}
        assert failure(channel(email=other)) == "TLS failed: CERTIFICATE_VERIFY_FAILED"


def test_mail_without_what_it_needs() -> None:
    """GIVEN a server without TLS, or one that refuses the recipient THEN no mail is sent; of
    several recipients, one that is accepted gets it."""
    settings = {"host": "127.0.0.1", "sender": "a@b.c", "to": ["ops@b.c"], "tls": "none"}
    with MailServer(refused=("ops@b.c",)) as server:
        made = channel(email={**settings, "port": server.port})
        assert failure(made) == "the mail server refuses the recipients"
        made = channel(email={**settings, "port": server.port, "tls": "starttls"})
        assert failure(made) == "the mail server does not offer what `tls` or `user` needs"
        both = {**settings, "port": server.port, "to": ["ops@b.c", "dba@b.c"]}
        refused = send(channel(email=both), MESSAGE)
        assert refused == "the mail server refuses 1 of the recipients"
        assert len(server.mails) == 1
    made = channel(email={**settings, "port": free_port()})
    assert failure(made) == "the mail server cannot be reached: Connection refused"


def test_a_program(tmp_path: Path) -> None:
    code = f"import sys; open({str(tmp_path / 'got')!r}, 'w').write(sys.stdin.read())"
    send(channel(command={"argv": [sys.executable, "-c", code]}), MESSAGE)
    assert json.loads((tmp_path / "got").read_text())["id"] == "m1"


def test_programs_that_fail() -> None:
    def made(*argv: str, **more: Any) -> Channel:
        return channel(command={"argv": argv}, **more)

    assert failure(made("sh", "-c", "exit 3")) == "the program ended with exit code 3"
    assert failure(made("/no/such")) == "the program cannot be run: No such file or directory"
    late = made("sh", "-c", "sleep 60 & sleep 60", timeout_s=0.2)
    assert failure(late) == "the program has not ended within 0.2 s"
