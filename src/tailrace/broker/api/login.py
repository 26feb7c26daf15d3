"""SaslHandshake and SaslAuthenticate."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import structlog
from kio.schema.errors import ErrorCode

from tailrace.broker.auth.login import LoginError

if TYPE_CHECKING:
    from tailrace.broker.api import Answer, Call


async def handshake(call: Call) -> Answer:
    """Which mechanism it is going to be. Tokens come in requests: version 0 sent them bare."""
    try:
        if call.version == 0:
            raise LoginError("unsupported_version")
        call.login.choose(call.request.mechanism)
        error = ErrorCode.none
    except LoginError as failed:
        error = await _refused(call, failed)
    return {"error_code": error, "mechanisms": call.login.mechanisms}


async def authenticate(call: Call) -> Answer:
    """A token for a token."""
    answer = {"error_message": None, "auth_bytes": b"", "session_lifetime": timedelta(0)}
    try:
        answer["auth_bytes"] = await call.login.step(bytes(call.request.auth_bytes))
    except LoginError as failed:
        error = await _refused(call, failed)
        said = "the login failed: the user's name or the password is wrong"
        return answer | {"error_code": error, "error_message": said}
    if call.login.done:
        call.broker.tally.logins["accepted"] += 1
    return answer


async def _refused(call: Call, failed: LoginError) -> ErrorCode:
    """Whoever tries passwords waits for each; nobody else does."""
    call.login.failed = True
    call.broker.tally.logins["refused"] += 1
    structlog.get_logger().warning(
        "broker.login-refused", peer=call.peer, user=call.login.claimed[:100], reason=str(failed)
    )
    await asyncio.sleep(call.broker.settings.limits.refusal_s)
    return ErrorCode[str(failed)]
