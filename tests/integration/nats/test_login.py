"""Every login to NATS, against a real server; errors name the reason."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import nkeys
import pytest

from tailrace.errors import SinkError, SinkRefusedError
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.nats.settings import NatsSink
from tailrace.sinks.nats.sink import JetStream
from tailrace.testing import EmbeddedNats
from tests.unit.sinks.rows import rows

if TYPE_CHECKING:
    from pathlib import Path


def delivered(server: EmbeddedNats, **given: Any) -> int:
    """How many messages arrive with these settings."""
    settings = NatsSink.model_validate({"type": "nats", "url": server.url} | given)
    sink = JetStream(settings, Lane(pipeline="test", history="a"))
    try:
        sink.open(ORIGIN)
        sink.write(rows(range(10)))
        return sink.flush().messages
    finally:
        sink.close()


def refusal(server: EmbeddedNats, **given: Any) -> SinkError:
    with pytest.raises(SinkRefusedError) as caught:
        delivered(server, **given)
    assert caught.value.hint
    return caught.value


def test_user_and_password() -> None:
    users = 'users: [{user: "tail", password: "race"}]'
    with EmbeddedNats(config=f"authorization {{ {users} }}") as server:
        assert delivered(server, user="tail", password="race") == 10
        assert "Authorization Violation" in str(refusal(server, user="tail", password="no"))
        assert "Authorization Violation" in str(refusal(server))
        own = f"nats://tail:race@127.0.0.1:{server.port}"
        assert delivered(server, url=own) == 0


def test_token() -> None:
    with EmbeddedNats(config='authorization { token: "s3cret" }') as server:
        assert delivered(server, token="s3cret") == 10
        assert "s3cret" not in str(refusal(server, token="s3cret2"))


def test_accounts() -> None:
    accounts = 'accounts { A { jetstream: enabled, users: [{user: "a", password: "a"}] } }'
    with EmbeddedNats(config=accounts) as server:
        assert delivered(server, user="a", password="a") == 10


def test_missing_permissions_are_named() -> None:
    allowed = 'publish: ["$JS.API.>"], subscribe: ["_INBOX.>"]'
    user = f'{{user: "a", password: "a", permissions: {{ {allowed} }}}}'
    with EmbeddedNats(config=f"authorization {{ users: [{user}] }}") as server:
        assert "cdc.orders.insert" in str(refusal(server, user="a", password="a"))


def test_the_permissions_the_guide_names_are_enough() -> None:
    publish = [
        "cdc.>",
        "$JS.API.STREAM.INFO.CDC",
        "$JS.API.STREAM.CREATE.CDC",
        "$JS.API.STREAM.UPDATE.CDC",
        "$JS.API.STREAM.MSG.GET.CDC",
        "$JS.API.CONSUMER.CREATE.CDC.>",
        "$JS.API.CONSUMER.MSG.NEXT.CDC.>",
        "$JS.API.CONSUMER.DELETE.CDC.>",
    ]
    allowed = f'publish: {json.dumps(publish)}, subscribe: ["_INBOX.>"]'
    user = f'{{user: "a", password: "a", permissions: {{ {allowed} }}}}'
    with EmbeddedNats(config=f"authorization {{ users: [{user}] }}") as server:
        assert delivered(server, user="a", password="a") == 10
        # The second time there is something to read back.
        assert delivered(server, user="a", password="a") == 0


def pair(kind: int) -> Any:
    return nkeys.from_seed(bytearray(nkeys.encode_seed(os.urandom(32), kind)))


def public(key: Any) -> str:
    return bytes(key.public_key).decode()


def test_nkey(tmp_path: Path) -> None:
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    file, wrong = tmp_path / "user.nk", tmp_path / "wrong.nk"
    file.write_bytes(seed)
    wrong.write_bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))
    key = public(nkeys.from_seed(bytearray(seed)))
    with EmbeddedNats(config=f"authorization {{ users: [{{nkey: {key}}}] }}") as server:
        assert delivered(server, nkey=file) == 10
        assert "Authorization Violation" in str(refusal(server, nkey=wrong))


def token(issuer: Any, subject: str, name: str, claims: dict[str, Any]) -> str:
    """A NATS JWT, as `nsc` creates it."""

    def part(value: object) -> str:
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        return base64.urlsafe_b64encode(text).rstrip(b"=").decode()

    body = {"iss": public(issuer), "sub": subject, "name": name, "iat": 1, "nats": claims}
    digest = hashlib.sha256(json.dumps(body).encode()).digest()
    body["jti"] = base64.b32encode(digest).rstrip(b"=").decode()
    text = part({"typ": "JWT", "alg": "ed25519-nkey"}) + "." + part(body)
    return text + "." + part(issuer.sign(text.encode()))


def test_credentials_file(tmp_path: Path) -> None:
    operator = pair(nkeys.PREFIX_BYTE_OPERATOR)
    account, system = pair(nkeys.PREFIX_BYTE_ACCOUNT), pair(nkeys.PREFIX_BYTE_ACCOUNT)
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    user = public(nkeys.from_seed(bytearray(seed)))
    boundless = dict.fromkeys(
        ("subs", "data", "payload", "imports", "exports", "conn", "leaf", "streams", "consumer",
         "mem_storage", "disk_storage"), -1
    )  # fmt: skip
    limits: dict[str, Any] = {
        "limits": boundless | {"wildcards": True},
        "type": "account",
        "version": 2,
    }
    no_streams = {"limits": {**limits["limits"], "mem_storage": 0, "disk_storage": 0}}
    claims = {"subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2}
    jwt = token(account, user, "user", claims)
    file = tmp_path / "user.creds"
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed.decode()}\n------END USER NKEY SEED------\n"
    )
    top = token(operator, public(operator), "operator", {"type": "operator", "version": 2})
    preloaded = "\n".join(
        f"{public(key)}: {token(operator, public(key), 'account', given)}"
        for key, given in ((account, limits), (system, limits | no_streams))
    )
    config = (
        f"operator: {top}\nsystem_account: {public(system)}\nresolver: MEMORY\n"
        f"resolver_preload: {{\n{preloaded}\n}}\n"
    )
    with EmbeddedNats(config=config) as server:
        assert delivered(server, credentials=file) == 10
        assert "Authorization Violation" in str(refusal(server))


def tls(folder: Path, extra: str = "") -> str:
    files = f'cert_file: "{folder}/named.crt", key_file: "{folder}/named.key"'
    return f"tls {{ {files} {extra} }}"


def test_tls(certificates: Path) -> None:
    with EmbeddedNats(config=tls(certificates)) as server:
        url = f"tls://localhost:{server.port}"
        assert delivered(server, url=url, tls_ca=certificates / "ca.crt") == 10
        wrong = refusal(server, url=url, tls_ca=certificates / "other.crt")
        assert "certificate verify failed" in str(wrong).lower().replace("_", " ")
        by_number = f"tls://127.0.0.1:{server.port}"
        assert "TLS failed" in str(refusal(server, url=by_number, tls_ca=certificates / "ca.crt"))
        # The server requires TLS, so an address without tls:// uses it too.
        assert "TLS failed" in str(refusal(server))


def test_mutual_tls(certificates: Path) -> None:
    config = tls(certificates, f', ca_file: "{certificates}/ca.crt", verify: true')
    with EmbeddedNats(config=config) as server:
        given = {"url": f"tls://localhost:{server.port}", "tls_ca": certificates / "ca.crt"}
        own = {
            "tls_certificate": certificates / "client.crt",
            "tls_key": certificates / "client.key",
        }
        assert delivered(server, **given, **own) == 10
        assert "certificate required" in str(refusal(server, **given)).lower().replace("_", " ")


def test_a_server_without_tls_is_refused() -> None:
    with EmbeddedNats() as server:
        url = f"tls://localhost:{server.port}"
        assert "does not offer TLS" in str(refusal(server, url=url))
