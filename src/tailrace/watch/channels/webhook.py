"""Webhooks: the JSON document by HTTP POST, signed as Standard Webhooks describes."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from tailrace.sinks.http.signature import Signer
from tailrace.watch.channels.post import post

if TYPE_CHECKING:
    from tailrace.config.alerts import Webhook
    from tailrace.watch.message import Message


def send_webhook(webhook: Webhook, message: Message, *, timeout_s: float) -> None:
    """Send a message. A repeated attempt has the same `webhook-id`."""
    body = json.dumps(message.document(), ensure_ascii=False).encode()
    now_s = int(time.time())
    headers = {"webhook-id": message.id, "webhook-timestamp": str(now_s)}
    if secret := webhook.secret.get_secret_value():
        headers["webhook-signature"] = Signer(secret).sign(message.id, now_s, body)
    if authorization := webhook.authorization.get_secret_value():
        headers["authorization"] = authorization
    post(webhook.url, body, headers, timeout_s=timeout_s, tls_ca=webhook.tls_ca)
