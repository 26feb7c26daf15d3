"""What librdkafka and brokers say, as Tailrace's errors.

librdkafka tries again by itself whatever can pass, so what arrives here is the end of its patience
or a no. A login that fails is not an answer to anything: it comes as an event, while the calls it
holds up run into their timeouts. `Events` remembers it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from tailrace.errors import (
    PoisonedError,
    SinkFencedError,
    SinkFullError,
    SinkRefusedError,
    SinkUnreachableError,
    TailraceError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOGIN = {
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
    KafkaError._SSL,
}
_RIGHTS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_TOPICS = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}
_SETTINGS = {
    KafkaError._INVALID_ARG,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_CONFIG,
    KafkaError.POLICY_VIOLATION,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError._NOT_IMPLEMENTED,
}
_TLS_ALERT = "tls alert"
"""A broker that does not like our certificate says so and hangs up; librdkafka calls it a cut."""
_POISON = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
}
_FENCED = {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}
_FULL = {KafkaError.THROTTLING_QUOTA_EXCEEDED}

_HINTS = {
    **dict.fromkeys(_LOGIN, "Check `user`, `password`, `mechanism` and the `tls_` settings."),
    **dict.fromkeys(_RIGHTS, "Give the user the rights that docs/guides/kafka.md lists."),
    **dict.fromkeys(_TOPICS, "Create the topic, or let Tailrace do it with `create: true`."),
    **dict.fromkeys(_SETTINGS, "Check the settings of the sink against those of the brokers."),
}
_OTHER_RUN = (
    "The same pipeline runs somewhere else, or another one has its name and `prefix`. Stop the one "
    "that should not run, then start this one again."
)


def translate_error(error: KafkaError, what: str) -> TailraceError:
    """The error for what librdkafka said about `what`."""
    code, text = error.code(), f"{what}: {said(error)}"
    if code in _FENCED:
        return SinkFencedError(text, hint=_OTHER_RUN)
    if code in _POISON:
        return PoisonedError(text)
    if code in _FULL:
        return SinkFullError(text)
    if code in _HINTS:
        return SinkRefusedError(text, hint=_HINTS[code])
    return SinkUnreachableError(text)


def said(error: KafkaError) -> str:
    """Its words, without those that librdkafka puts before them."""
    return error.str().removeprefix("Broker: ").removeprefix("Local: ")


def cause(error: BaseException) -> KafkaError | None:
    """What librdkafka said, if it is behind an exception.

    A fatal error is raised by whatever call serves events; a callback that runs in the same call
    then fails over it with a SystemError.
    """
    for link in _chain(error):
        if isinstance(link, KafkaException) and link.args and isinstance(link.args[0], KafkaError):
            return link.args[0]
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class Events:
    """What a client says besides its answers: the reasons behind its timeouts."""

    def __init__(self) -> None:
        self._refusal: KafkaError | None = None
        self._trouble: KafkaError | None = None
        self._nobody = False

    def __call__(self, error: KafkaError) -> None:
        """Remember an event."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._nobody = True
        elif error.code() in _LOGIN or _TLS_ALERT in error.str():
            self._refusal = error
        else:
            self._trouble = error

    @property
    def hopeless(self) -> bool:
        """Whether waiting on is of no use: nobody is there, or nobody lets us in."""
        return self._refusal is not None or self._nobody

    def clear(self) -> None:
        """All is well again."""
        self._refusal, self._trouble, self._nobody = None, None, False

    def translate_error(self, error: KafkaError | None, what: str) -> TailraceError:
        """The error for a call that failed, or was given up (None), as events explain it."""
        if error is not None and not isinstance(
            found := translate_error(error, what), SinkUnreachableError
        ):
            return found
        reason = self._refusal or self._trouble or error
        if reason is None:
            return SinkUnreachableError(f"{what}: no answer")
        if reason is self._refusal:
            hint = _HINTS[KafkaError._AUTHENTICATION]
            return SinkRefusedError(f"{what}: {said(reason)}", hint=hint)
        return translate_error(reason, what)
