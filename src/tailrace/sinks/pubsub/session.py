"""Clients of Pub/Sub: the login and the channel, without the client's own retries.

A channel starts threads, and does not survive a fork. Spark's Python workers are forked with this
module loaded, so nothing is created before a sink is opened in its worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import google.auth
import grpc
from google.api_core.gapic_v1.client_info import ClientInfo
from google.auth import credentials as auth
from google.oauth2 import service_account
from google.pubsub_v1 import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from tailrace import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.sinks.pubsub.settings import PubSubSink

_OPTIONS = [
    # After a lost connection the engine retries within a second; gRPC would wait up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # Of another client in this process, which may be in such a pause.
    ("grpc.use_local_subchannel_pool", 1),
]


def client_of(settings: PubSubSink) -> PublisherClient:
    """A client, for several threads. It connects when the first request is sent.

    The variable PUBSUB_EMULATOR_HOST has no effect: the settings say where messages go.
    """
    address = urlsplit(settings.endpoint_url)
    host = address.hostname or PublisherClient.DEFAULT_ENDPOINT
    host = f"[{host}]" if ":" in host else host
    port = address.port or (443 if settings.encrypted else 80)
    transport = PublisherGrpcTransport(
        host=f"{host}:{port}",
        credentials=_credentials(settings),
        ssl_channel_credentials=_trust(settings.tls_ca),
        channel=_encrypted if settings.encrypted else _unencrypted,
        client_info=ClientInfo(user_agent=f"tailrace/{__version__}"),
        always_use_jwt_access=True,
    )
    return PublisherClient(transport=transport)


def _credentials(settings: PubSubSink) -> auth.Credentials:
    scopes = PublisherGrpcTransport.AUTH_SCOPES
    if not settings.encrypted:
        return auth.AnonymousCredentials()
    if settings.credentials_file is not None:
        return service_account.Credentials.from_service_account_file(
            str(settings.credentials_file), scopes=scopes
        )
    return google.auth.default(scopes=scopes)[0]


def _trust(authority: Path | None) -> grpc.ChannelCredentials | None:
    if authority is None:
        return None
    return grpc.ssl_channel_credentials(authority.read_bytes())


def _encrypted(host: str, *, options: list[tuple[str, Any]], **keys: Any) -> grpc.Channel:
    return PublisherGrpcTransport.create_channel(host, options=[*options, *_OPTIONS], **keys)


def _unencrypted(host: str, *, options: list[tuple[str, Any]], **_: Any) -> grpc.Channel:
    return grpc.insecure_channel(host, options=[*options, *_OPTIONS])
