"""Settings that all sinks for AWS have."""

from __future__ import annotations

import re
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tailrace.settings import is_loopback
from tailrace.sinks.requests.settings import RequestSettings

_ROLE = re.compile(r"arn:[a-z-]+:iam::[0-9]{12}:role/[!-~]+")
_REGION = re.compile(r"[a-z]{2,}(-[a-z0-9]+)+")


def _endpoint(value: str) -> str:
    parts = urlsplit(value)
    if value and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError("must be an http:// or https:// URL")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("must not contain a user, a password, a query or a fragment")
    return value


def _role(value: str) -> str:
    if value and _ROLE.fullmatch(value) is None:
        raise ValueError("must be the ARN of a role, arn:aws:iam::ACCOUNT:role/NAME")
    return value


def _region(value: str) -> str:
    if value and _REGION.fullmatch(value) is None:
        raise ValueError("must be a region such as eu-central-1")
    return value


class AwsSettings(RequestSettings):
    """The login, the region and the endpoint."""

    region: Annotated[str, AfterValidator(_region)] = Field(
        default="", description="Region. Default: that of the environment or of the profile."
    )
    endpoint_url: Annotated[str, AfterValidator(_endpoint)] = Field(
        default="",
        description="Address of the service. Default: that of AWS in the region.",
    )
    access_key_id: str = Field(
        default="",
        description=(
            "Access key. Without one, the default chain finds credentials: environment, shared "
            "files, web identity, container, instance."
        ),
    )
    secret_access_key: SecretStr = Field(
        default=SecretStr(""), description="Secret of the access key."
    )
    session_token: SecretStr = Field(
        default=SecretStr(""), description="Session token of temporary credentials."
    )
    profile: str = Field(default="", description="Profile of the shared files of AWS.")
    role_arn: Annotated[str, AfterValidator(_role)] = Field(
        default="", description="Role to assume with these credentials."
    )
    external_id: SecretStr = Field(
        default=SecretStr(""), description="External id that the role demands."
    )
    tls_ca: Path | None = Field(default=None, description="Certificate authority to trust.")

    @model_validator(mode="after")
    def _consistent_login(self) -> Self:
        secret = self.secret_access_key.get_secret_value()
        if bool(self.access_key_id) != bool(secret):
            raise ValueError("`access_key_id` and `secret_access_key` must be set together")
        if self.session_token.get_secret_value() and not secret:
            raise ValueError("`session_token` needs an `access_key_id`")
        if self.profile and secret:
            raise ValueError("`profile` and `access_key_id` cannot be combined")
        url = urlsplit(self.endpoint_url)
        if secret and url.scheme == "http" and not is_loopback(url.hostname or ""):
            raise ValueError(
                "the credentials would be used over an unencrypted connection: use an https:// "
                "endpoint_url. http:// is allowed on loopback only"
            )
        if self.external_id.get_secret_value() and not self.role_arn:
            raise ValueError("`external_id` needs a `role_arn`")
        return self
