"""Signatures of Standard Webhooks: https://www.standardwebhooks.com."""

from __future__ import annotations

import base64
import hashlib
import hmac

from tailrace.sinks.http.settings import SECRET_PREFIX


class Signer:
    """Signs requests with a secret of the form `whsec_BASE64`."""

    def __init__(self, secret: str) -> None:
        self._key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))

    def sign(self, name: str, timestamp_s: int, body: bytes) -> str:
        """The header `webhook-signature` of a request with this id, time and body.

        >>> signer = Signer("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
        >>> signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
        'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='
        """
        signed = b"%s.%d.%s" % (name.encode(), timestamp_s, body)
        digest = hmac.new(self._key, signed, hashlib.sha256).digest()
        return f"v1,{base64.b64encode(digest).decode()}"
