"""Clients of botocore: the login and the transport, without botocore's own retries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    CredentialProvider,
    CredentialResolver,
    DeferredRefreshableCredentials,
)
from botocore.session import Session

from tailrace import __version__

if TYPE_CHECKING:
    from tailrace.sinks.aws.settings import AwsSettings

_CONNECT_S = 10.0
"""The most that a connection may take to be made; the timeout itself if that is shorter."""


def client_of(settings: AwsSettings, service: str) -> Any:
    """A client of a service, for several threads.

    It sends each request once: retries are the engine's, which keeps keys in order meanwhile. It
    does not check parameters either: the sink has, and the check costs more than the rest.
    """
    session = _session(settings)
    config = Config(
        connect_timeout=min(_CONNECT_S, settings.timeout_s),
        read_timeout=settings.timeout_s,
        max_pool_connections=settings.concurrency,
        retries={"mode": "standard", "total_max_attempts": 1},
        parameter_validation=False,
        tcp_keepalive=True,
        user_agent_extra=f"tailrace/{__version__}",
    )
    return session.create_client(
        service,
        region_name=settings.region or None,
        endpoint_url=settings.endpoint_url or None,
        verify=None if settings.tls_ca is None else str(settings.tls_ca),
        config=config,
    )


def _session(settings: AwsSettings) -> Session:
    session = Session(profile=settings.profile or None)
    if settings.region:
        session.set_config_variable("region", settings.region)
    if settings.access_key_id:
        session.set_credentials(
            settings.access_key_id,
            settings.secret_access_key.get_secret_value(),
            settings.session_token.get_secret_value() or None,
        )
    if not settings.role_arn:
        return session
    assumed = Session(profile=settings.profile or None)
    resolver = CredentialResolver([_AssumedRole(session, settings)])
    assumed.register_component("credential_provider", resolver)
    return assumed


class _AssumedRole(CredentialProvider):  # type: ignore[misc]  # botocore has no types
    """Credentials of a role, renewed before they expire."""

    METHOD = "assume-role"

    def __init__(self, session: Session, settings: AwsSettings) -> None:
        super().__init__()
        self._session = session
        self._settings = settings

    def load(self) -> DeferredRefreshableCredentials | None:
        """The role is assumed when the first request is signed."""
        extra = {"RoleSessionName": "tailrace"}
        external = self._settings.external_id.get_secret_value()
        if external:
            extra["ExternalId"] = external
        source = self._session.get_credentials()
        if source is None:
            return None
        fetcher = AssumeRoleCredentialFetcher(
            client_creator=self._client,
            source_credentials=source,
            role_arn=self._settings.role_arn,
            extra_args=extra,
        )
        return DeferredRefreshableCredentials(
            method=self.METHOD, refresh_using=fetcher.fetch_credentials
        )

    def _client(self, service: str, **keys: Any) -> Any:
        region = self._settings.region or None
        return self._session.create_client(service, region_name=region, **keys)
