"""The section `alerts` of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from tailrace.config import Config, load
from tailrace.config.alerts import Alerts
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

MAIL = {"host": "smtp.example.org", "sender": "a@example.org", "to": ["b@example.org"]}


def channel(**settings: Any) -> dict[str, Any]:
    return {"alerts": {"channels": {"ops": settings}}}


def test_without_the_section_there_is_no_watchdog() -> None:
    assert Config().alerts is None
    assert Config.model_validate({"alerts": {}}).alerts == Alerts()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"webhook": {"url": "https://a.example"}, "slack": {"url": "https://a.example"}},
        {"webhook": {"url": "ftp://s3cret.example"}},
        {"webhook": {"url": "https://"}},
        {"webhook": {"url": "https://s3cret.example/a b"}},
        {"webhook": {"url": "https://s3cret.example:99999"}},
        {"webhook": {"url": "https://a.example", "secret": "s3cret"}},
        {"webhook": {"url": "https://a.example", "secret": "whsec_s3cret"}},
        {"webhook": {"url": "https://a.example", "authorization": "Bearer s3cret\r\nx: y"}},
        {"webhook": {"url": "http://a.example", "authorization": "Bearer s3cret"}},
        {"email": {**MAIL, "to": []}},
        {"email": {**MAIL, "to": ["a@b.c\r\nBcc: s3cret@b.c"]}},
        {"email": {**MAIL, "sender": "s3cret"}},
        {"email": {**MAIL, "tls": "none", "user": "u", "password": "s3cret"}},
        {"command": {"argv": []}},
        {"severity": "info", "command": {"argv": ["true"]}},
        {"timeout_s": 0, "command": {"argv": ["true"]}},
    ],
)
def test_invalid_channels_are_refused_without_a_secret_in_the_error(
    settings: dict[str, Any],
) -> None:
    with pytest.raises(ValidationError) as caught:
        Config.model_validate(channel(**settings))
    assert "s3cret" not in str(caught.value).replace("s3cret.example", "")


def test_a_wrong_key_gets_a_hint(tmp_path: Path) -> None:
    file = tmp_path / "t.yml"
    file.write_text("alerts: {channels: {ops: {webhook: {url: 'https://a', secrt: x}}}}\n")
    with pytest.raises(ConfigError, match="did you mean secret"):
        load(file)


def test_secrets_are_not_shown() -> None:
    secret = "whsec_czNjcmV0czNjcmV0czNjcmV0czNjcmV0"
    config = Config.model_validate(
        {
            "alerts": {
                "channels": {
                    "a": {
                        "webhook": {
                            "url": "https://u:s3cret@a.example/s3cret",
                            "secret": secret,
                            "authorization": "Bearer s3cret",
                        }
                    },
                    "b": {"slack": {"url": "https://a.example/s3cret"}},
                    "c": {"email": {**MAIL, "user": "u", "password": "s3cret"}},
                }
            }
        }
    )
    assert "s3cret" not in repr(config)
    assert secret not in repr(config)


@pytest.mark.parametrize(("tls", "port"), [("starttls", 587), ("tls", 465), ("none", 25)])
def test_the_port_of_a_mail_server_follows_from_tls(tls: str, port: int) -> None:
    config = Config.model_validate(channel(email={**MAIL, "tls": tls}))
    assert config.alerts is not None
    email = config.alerts.channels["ops"].email
    assert email is not None
    assert email.server_port == port
