"""Errors of Redis and of redis-py, translated into Tailrace errors.

An error of Redis begins with a code. redis-py turns some codes into classes and removes them from
the text; inside a script the code may be anywhere in the text.

| Redis says                                               | Tailrace                          |
|----------------------------------------------------------|-----------------------------------|
| no answer, LOADING, READONLY, MASTERDOWN, CLUSTERDOWN, ...| SINK_UNREACHABLE, retried         |
| OOM                                                      | SINK_FULL, retried                |
| NOAUTH, WRONGPASS, NOPERM, WRONGTYPE, anything else      | SINK_REFUSED                      |
"""

from __future__ import annotations

import re
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING

from redis import exceptions

from tailrace.errors import SinkError, SinkFullError, SinkRefusedError, SinkUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PASSES = {
    "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "BUSY",
    "NOREPLICAS", "MISCONF", "UNBLOCKED", "NOMASTERLINK", "FAILOVER",
}  # fmt: skip
_FULL = {"OOM"}
_HINTS = {
    "NOAUTH": "Set `user` and `password` of the sink.",
    "WRONGPASS": "Check `user` and `password` of the sink.",
    "NOPERM": "Grant the user the commands and keys that docs/guides/redis.md lists.",
    "WRONGTYPE": "Delete the key, or choose another `name` or `route`.",
    "CROSSSLOT": "Set `cluster: true`.",
    "READONLY": "It is a replica: name its master, or use Sentinel.",
    "MISCONF": "Redis cannot save to its disk: see its log.",
    "OOM": "Raise maxmemory of Redis, or set `maxlen` or `expire_s`.",
    "MOVED": "If it goes on, the slots of the cluster are being moved.",
}
_CLASSES: dict[type[Exception], str] = {
    exceptions.OutOfMemoryError: "OOM",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.NoPermissionError: "NOPERM",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.MovedError: "MOVED",
    exceptions.AskError: "ASK",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.ClusterCrossSlotError: "CROSSSLOT",
    exceptions.AuthenticationWrongNumberOfArgsError: "WRONGPASS",
    exceptions.AuthenticationError: "WRONGPASS",
    exceptions.AuthorizationError: "NOAUTH",
}
_CODES = re.compile(rf"\b({'|'.join(sorted(_PASSES | _FULL | set(_HINTS)))})\b")
_OTHER_HINT = "Compare the settings of the sink, also `tls_`, with those of the server."


@contextmanager
def translated(what: str, *, cluster: bool = False) -> Iterator[None]:
    """Raise Tailrace errors for those of redis-py. `what` names the server."""
    try:
        yield
    except (exceptions.RedisError, exceptions.RedisClusterException, OSError) as error:
        raise translate_error(error, what, cluster=cluster) from error


def translate_error(error: Exception, what: str, *, cluster: bool = False) -> SinkError:
    """The Tailrace error for an error of redis-py."""
    text, code = f"{what}: {error}", _code(error)
    if code == "MOVED" and not cluster:
        return SinkRefusedError(text, hint="It is a Redis Cluster: set `cluster: true`.")
    if code in _FULL:
        return SinkFullError(text, hint=_HINTS[code])
    refused = code not in _PASSES if code else _is_refusal(error)
    if refused:
        return SinkRefusedError(text, hint=_HINTS.get(code, _OTHER_HINT))
    return SinkUnreachableError(text, hint=_HINTS.get(code, ""))


def _code(error: Exception) -> str:
    """The code of Redis' error, also if an error of the cluster's client hides it."""
    for link in _chain(error):
        for kind, code in _CLASSES.items():
            if isinstance(link, kind):
                return code
        if isinstance(link, exceptions.ResponseError) and (found := _CODES.search(str(link))):
            return found[1]
    return ""


def _is_refusal(error: Exception) -> bool:
    """Whether an error without a known code comes back until a setting is changed."""
    if isinstance(error, exceptions.ResponseError) or "Cluster mode is not enabled" in str(error):
        return True
    # One of the sides rejects the certificate of the other.
    return any(
        isinstance(link, ssl.SSLCertVerificationError)
        or (isinstance(link, ssl.SSLError) and "ALERT" in str(link).upper())
        for link in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
