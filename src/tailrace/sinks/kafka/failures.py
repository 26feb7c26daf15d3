"""Errors of librdkafka and of brokers, translated into Tailrace errors.

librdkafka retries transient errors by itself. An error that arrives here is either final or
outlived librdkafka's own timeouts. A failed login is not the result of any call: librdkafka reports
it as an event while the calls that wait for the connection time out. `Events` keeps it, so that the
error names the wrong password and not the timeout.
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
"""A broker that rejects the client's certificate sends a TLS alert and closes the connection.
librdkafka reports that as a transport error, not as an authentication error."""
_BROKERS_FENCED = "brokers are currently fenced"
"""While its brokers start, a controller refuses new topics with INVALID_REPLICATION_FACTOR, like a
replication factor that the cluster is too small for. Only the message differs."""
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
    **dict.fromkeys(_RIGHTS, "Grant the user the operations that docs/guides/kafka.md lists."),
    **dict.fromkeys(_TOPICS, "Create the topic, or set `create: true` for the sink."),
    **dict.fromkeys(_SETTINGS, "Compare the settings of the sink with those of the brokers."),
}
_OTHER_RUN = (
    "The same pipeline runs in another process, or another pipeline has its name and `prefix`. "
    "Stop the other one, then start this one again."
)


def translate_error(error: KafkaError, what: str) -> TailraceError:
    """The Tailrace error for an error of librdkafka; `what` is the topic or the cluster."""
    code, text = error.code(), f"{what}: {message_of(error)}"
    if code in _FENCED:
        return SinkFencedError(text, hint=_OTHER_RUN)
    if code == KafkaError.INVALID_REPLICATION_FACTOR and _BROKERS_FENCED in text:
        return SinkUnreachableError(text)
    if code in _POISON:
        return PoisonedError(text)
    if code in _FULL:
        return SinkFullError(text)
    if code in _HINTS:
        return SinkRefusedError(text, hint=_HINTS[code])
    return SinkUnreachableError(text)


def message_of(error: KafkaError) -> str:
    """The message without the prefix that names its origin (`Broker: `, `Local: `)."""
    return error.str().removeprefix("Broker: ").removeprefix("Local: ")


def cause(error: BaseException) -> KafkaError | None:
    """The error of librdkafka in the chain of an exception; None if there is none.

    librdkafka raises a fatal error from any call that serves events. If a callback runs in the same
    call, confluent-kafka raises a SystemError whose cause is the KafkaException.
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
    """The error events of one client, which explain its timeouts.

    Pass an instance as librdkafka's `error_cb`. The last authentication failure wins over any other
    event: it is the cause, and the transport errors are its consequences.
    """

    def __init__(self) -> None:
        self._refusal: KafkaError | None = None
        self._last: KafkaError | None = None
        self._all_brokers_down = False

    def __call__(self, error: KafkaError) -> None:
        """Keep an event."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._all_brokers_down = True
        elif error.code() in _LOGIN or _TLS_ALERT in error.str():
            self._refusal = error
        else:
            self._last = error

    @property
    def final(self) -> bool:
        """Whether to stop waiting: no broker can be reached, or the login was refused."""
        return self._refusal is not None or self._all_brokers_down

    def clear(self) -> None:
        """Forget all events after a successful call."""
        self._refusal, self._last, self._all_brokers_down = None, None, False

    def translate_error(self, error: KafkaError | None, what: str) -> TailraceError:
        """The error for a call that failed (None: timed out), with the reason that events give.

        | the call's own error                    | events       | result                        |
        |-----------------------------------------|--------------|-------------------------------|
        | anything but "unreachable"              | any          | the call's own error          |
        | "unreachable" or a timeout              | login failed | `SinkRefusedError`            |
        | "unreachable" or a timeout              | other        | the error of the last event   |
        | "unreachable" or a timeout              | none         | the call's, or "no answer"    |
        """
        if error is not None and not isinstance(
            translated := translate_error(error, what), SinkUnreachableError
        ):
            return translated
        reason = self._refusal or self._last or error
        if reason is None:
            return SinkUnreachableError(f"{what}: no answer")
        if reason is self._refusal:
            hint = _HINTS[KafkaError._AUTHENTICATION]
            return SinkRefusedError(f"{what}: {message_of(reason)}", hint=hint)
        return translate_error(reason, what)
