"""SaslHandshake and SaslAuthenticate."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import structlog
from kio.schema.errors import ErrorCode

from tailrace.broker.auth.login import LoginError

if TYPE_CHECKING:
    from tailrace.broker.api import Answer, Call
    from tailrace.broker.api.requests import SaslAuthenticate, SaslHandshake

_MAX_LOGGED_NAME = 100


async def handshake(call: Call[SaslHandshake]) -> Answer:
    """Choose the mechanism. Version 0 is refused: its tokens follow outside of requests."""
    try:
        if call.version == 0:
            raise LoginError("unsupported_version")
        call.login.choose(call.request.mechanism)
        error = ErrorCode.none
    except LoginError as failed:
        error = await _refuse(call, failed)
    return {"error_code": error, "mechanisms": call.login.mechanisms}


async def authenticate(call: Call[SaslAuthenticate]) -> Answer:
    """Answer one token of the mechanism."""
    answer = {"error_message": None, "auth_bytes": b"", "session_lifetime": timedelta(0)}
    try:
        answer["auth_bytes"] = await call.login.step(bytes(call.request.auth_bytes))
    except LoginError as failed:
        error = await _refuse(call, failed)
        message = "authentication failed: invalid user name or password"
        return answer | {"error_code": error, "error_message": message}
    if call.login.done:
        call.broker.tally.logins["accepted"] += 1
    return answer


async def _refuse(call: Call[Any], failed: LoginError) -> ErrorCode:
    """Delay the response, so that a client that guesses passwords is slow."""
    call.login.failed = True
    call.broker.tally.logins["refused"] += 1
    structlog.get_logger().warning(
        "broker.login_failed",
        peer=call.peer,
        user=call.login.claimed[:_MAX_LOGGED_NAME],
        reason=str(failed),
    )
    await asyncio.sleep(call.broker.limits.refusal_s)
    return ErrorCode[str(failed)]
