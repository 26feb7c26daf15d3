"""Settings of the watchdog: what counts as healthy, and where alerts are sent."""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path  # noqa: TC003 - pydantic reads them
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tailrace.settings import Bytes, Section, is_loopback
from tailrace.sinks.http.settings import SECRET_PREFIX

_ADDRESS = re.compile(r"[^@\s<>,;]+@[^@\s<>,;]+")
_HEADER = re.compile(r"[!-~]+(?: [!-~]+)*")


def _channel_name(name: str) -> str:
    if re.fullmatch(r"[a-z0-9_-]{1,63}", name) is None:
        raise ValueError("a channel name must be 1 to 63 of the characters a-z, 0-9, _ and -")
    return name


def _url(value: SecretStr) -> SecretStr:
    try:
        parts = urlsplit(value.get_secret_value())
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or re.fullmatch(r"[!-~]+", value.get_secret_value()) is None:
        raise ValueError("must be an address such as https://alerts.example/tailrace")
    return value


def _secret(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    try:
        length = len(base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True))
    except binascii.Error:
        length = 0
    if text and (not text.startswith(SECRET_PREFIX) or not 24 <= length <= 64):
        raise ValueError(f"must be {SECRET_PREFIX} and 24 to 64 bytes in Base64")
    return value


def _mail_address(text: str) -> str:
    if _ADDRESS.fullmatch(text) is None:
        raise ValueError("must be an address such as ops@example.org")
    return text


def _header(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if text and _HEADER.fullmatch(text) is None:
        raise ValueError("must be printable ASCII characters on one line")
    return value


ChannelName = Annotated[str, AfterValidator(_channel_name)]
Url = Annotated[SecretStr, AfterValidator(_url)]
Severity = Literal["warning", "error"]


class Webhook(Section):
    """A JSON document by HTTP POST."""

    url: Url = Field(description="Address of the receiver, http:// or https://.")
    secret: Annotated[SecretStr, AfterValidator(_secret)] = Field(
        default=SecretStr(""),
        description=(
            f"Signs requests as Standard Webhooks describes; {SECRET_PREFIX}BASE64. Empty: no "
            "signature."
        ),
    )
    authorization: Annotated[SecretStr, AfterValidator(_header)] = Field(
        default=SecretStr(""), description="The header `Authorization`. Empty: none."
    )
    tls_ca: Path | None = Field(default=None, description="Certificate authority to trust.")

    @model_validator(mode="after")
    def _safe(self) -> Self:
        url = urlsplit(self.url.get_secret_value())
        plain = url.scheme == "http" and not is_loopback(url.hostname or "")
        if plain and self.authorization.get_secret_value():
            raise ValueError("`authorization` would be sent unencrypted: use an https:// URL")
        return self


class Slack(Section):
    """A message in the form of Slack's incoming webhooks, which Mattermost and others take too."""

    url: Url = Field(description="Address of the incoming webhook.")


class Email(Section):
    """A mail by SMTP."""

    host: str = Field(min_length=1, description="Mail server.")
    port: int = Field(
        default=0, ge=0, le=65535, description="Its port. 0: 587, 465 with `tls: tls`, or 25."
    )
    tls: Literal["starttls", "tls", "none"] = Field(
        default="starttls",
        description="starttls and tls: encrypted, and the certificate is verified. none: not.",
    )
    tls_ca: Path | None = Field(default=None, description="Certificate authority to trust.")
    user: str = Field(default="", description="User to log in as. Empty: no login.")
    password: SecretStr = Field(default=SecretStr(""), description="Its password.")
    sender: Annotated[str, AfterValidator(_mail_address)] = Field(description="Sender's address.")
    to: tuple[Annotated[str, AfterValidator(_mail_address)], ...] = Field(
        min_length=1, description="Addresses of the recipients."
    )

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if self.tls == "none" and self.user and not is_loopback(self.host):
            raise ValueError("`password` would be sent unencrypted: use `tls: starttls`")
        return self

    @property
    def server_port(self) -> int:
        """The port to connect to."""
        return self.port or {"starttls": 587, "tls": 465, "none": 25}[self.tls]


class Command(Section):
    """A program of yours, with the JSON document on its standard input."""

    argv: tuple[str, ...] = Field(
        min_length=1,
        description=(
            "The program and its arguments. No shell is involved. Plans and the console show them: "
            "a secret belongs into a file that the program reads."
        ),
    )


class Channel(Section):
    """Where alerts are sent: exactly one of `webhook`, `slack`, `email` and `command`."""

    severity: Severity = Field(
        default="warning", description="The least severe alerts that are sent here."
    )
    repeat_s: float | None = Field(
        default=None, ge=0, description="Overrides `alerts.repeat_s` for this channel."
    )
    timeout_s: float = Field(
        default=10.0, gt=0, le=300, description="Seconds that sending an alert may take."
    )
    webhook: Webhook | None = Field(default=None, description=Webhook.__doc__)
    slack: Slack | None = Field(default=None, description=Slack.__doc__)
    email: Email | None = Field(default=None, description=Email.__doc__)
    command: Command | None = Field(default=None, description=Command.__doc__)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [each for each in (self.webhook, self.slack, self.email, self.command) if each]
        if len(given) != 1:
            raise ValueError("a channel needs one of webhook, slack, email and command")
        return self

    @property
    def kind(self) -> Webhook | Slack | Email | Command:
        """The one that is set."""
        found = self.webhook or self.slack or self.email or self.command
        assert found is not None
        return found


class Alerts(Section):
    """The watchdog. Without this section it does not run. See docs/guides/alerts.md."""

    supervised: bool = Field(
        default=True,
        description=(
            "`tailrace run` and `tailrace follow` start the watchdog. false: run `tailrace watch` "
            "as a service of its own, which also reports that they have ended."
        ),
    )
    heartbeat_s: float = Field(
        default=15.0,
        ge=0,
        description=(
            "Seconds between transactional messages of the watchdog in the source, which must come "
            "back through the log and pass each pipeline. 0: none."
        ),
    )
    stalled_s: float = Field(
        default=60.0,
        gt=0,
        description=(
            "Seconds without progress of capture or of a pipeline, while there is something to do."
        ),
    )
    lag_s: float = Field(
        default=300.0, gt=0, description="Seconds that a pipeline may be behind the log."
    )
    wal_bytes: Bytes = Field(
        default=2**30,
        gt=0,
        description="WAL that PostgreSQL may keep for the slot. Half of it is a warning.",
    )
    log_bytes: Bytes = Field(
        default=50 * 2**30, gt=0, description="Size of the log. Four fifths of it are a warning."
    )
    disk_free_percent: float = Field(
        default=10.0,
        ge=0,
        le=100,
        description=(
            "Free space that the disks of log and data folder need. Less is a warning, less than "
            "half of it an error."
        ),
    )
    memory_bytes: Bytes = Field(
        default=0,
        ge=0,
        description=(
            "Memory of all processes together. 0: nine tenths of the machine's, or of the "
            "container's limit."
        ),
    )
    parked: int = Field(
        default=1, ge=1, description="Parked messages of a pipeline from which on it is a warning."
    )
    certificate_days: float = Field(
        default=14.0,
        ge=0,
        description="Days before the end of a certificate from which on it is a warning.",
    )
    for_s: float = Field(
        default=10.0,
        ge=0,
        description=(
            "Seconds that a state must last before an alert or a recovery is sent. Final states "
            "(GAP, SLOT_LOST ...) are sent at once."
        ),
    )
    repeat_s: float = Field(
        default=14400.0,
        ge=0,
        description="Seconds after which an alert that lasts is sent again. 0: never.",
    )
    channels: dict[ChannelName, Channel] = Field(default={}, description=Channel.__doc__ or "")
