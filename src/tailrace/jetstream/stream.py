"""The stream that messages go to: created if it is missing, checked if it exists, never altered.

A setting that would lose messages is an error: the sink does not open. A setting that may surprise
is a warning: the sink logs it once. `inspect` gives both to `tailrace check`.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import structlog

from tailrace.errors import SinkRefusedError, TailraceError
from tailrace.finding import Finding, Severity, error, info, warning
from tailrace.jetstream.connection import NatsConnection
from tailrace.jetstream.failures import error_of
from tailrace.jetstream.subjects import matches, pattern_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.jetstream.settings import JetStreamSettings

_API = "$JS.API"
_STREAM_NOT_FOUND = 10059
_STREAM_EXISTS = 10058
_NS = 10**9
_NAME = re.compile(r"[^\s.*>/\\\x00-\x20\x7f]{1,255}")
_OWNER = "tailrace.pipeline"
_logged: set[tuple[str, str]] = set()
"""Warnings that this process has logged: a sink opens its stream once per micro-batch."""


def inspect(settings: JetStreamSettings, *, name: str = "check") -> list[Finding]:
    """The findings about the stream of a sink, for `check` and `doctor`. Changes nothing."""
    stream = settings.stream.name
    try:
        with contextlib.closing(NatsConnection.connect(settings, name=name)) as connection:
            answer = find_stream(connection, stream)
    except TailraceError as failure:
        return [error(str(failure), failure.hint)]
    if answer is None:
        return [info(f"stream {stream} does not exist; it will be created")]
    passed = Finding(severity=Severity.OK, finding=f"stream {stream} fits its settings")
    return list(compare(settings, answer["config"], pipeline="")) or [passed]


def stream_info(settings: JetStreamSettings, stream: str) -> dict[str, Any]:
    """The server's description of a stream: its config, its state, its cluster."""
    with contextlib.closing(NatsConnection.connect(settings, name="stream info")) as connection:
        answer = find_stream(connection, stream)
    if answer is None:
        raise SinkRefusedError(f"there is no stream {stream}", hint="Check stream.name.")
    return answer


def probe(settings: JetStreamSettings, *, name: str) -> None:
    """Raise an error unless JetStream answers. The stream need not exist yet."""
    with contextlib.closing(NatsConnection.connect(settings, name=name)) as connection:
        find_stream(connection, settings.stream.name)


def find_stream(connection: NatsConnection, stream: str) -> dict[str, Any] | None:
    """The answer to STREAM.INFO; None if the stream does not exist."""
    if _NAME.fullmatch(stream) is None:
        raise SinkRefusedError(
            f"{stream[:100]!r} is not a valid stream name",
            hint="A stream name has no blanks and none of . * > / \\",
        )
    answer = connection.request(f"{_API}.STREAM.INFO.{stream}")
    if answer.get("error", {}).get("err_code") == _STREAM_NOT_FOUND:
        return None
    return checked(answer, f"read stream {stream}")


def checked(answer: dict[str, Any], action: str) -> dict[str, Any]:
    """The answer of JetStream's API. Raises a SinkError if it is an error."""
    failure = answer.get("error")
    if not failure:
        return answer
    text = f"NATS cannot {action}: {failure.get('description', 'no reason given')}"
    raise error_of(text, code=int(failure.get("code", 0)), err_code=int(failure.get("err_code", 0)))


def ready(
    connection: NatsConnection, settings: JetStreamSettings, *, pipeline: str
) -> dict[str, Any]:
    """The stream's description, after the stream is created or has passed its checks."""
    name = settings.stream.name
    answer = find_stream(connection, name)
    if answer is None:
        answer = _create(connection, settings, pipeline)
    for finding in compare(settings, answer["config"], pipeline=pipeline):
        if finding.severity is Severity.ERROR:
            raise SinkRefusedError(finding.finding, hint=finding.fix)
        if (name, finding.finding) not in _logged:
            _logged.add((name, finding.finding))
            structlog.get_logger().warning(
                "nats.stream_warning", stream=name, finding=finding.finding, fix=finding.fix
            )
    return answer


def _create(
    connection: NatsConnection, settings: JetStreamSettings, pipeline: str
) -> dict[str, Any]:
    name, config = settings.stream.name, _stream_config(settings, pipeline)
    answer = connection.request(f"{_API}.STREAM.CREATE.{name}", config)
    if answer.get("error", {}).get("err_code") == _STREAM_EXISTS:
        # Another pipeline has created it in this moment, with its own name in the metadata.
        found = find_stream(connection, name)
        if found is not None:
            return found
    created = checked(answer, f"create stream {name}")
    structlog.get_logger().info("nats.stream_created", stream=name, subjects=config["subjects"])
    return created


def create(settings: JetStreamSettings, *, name: str, owner: str) -> None:
    """Create the stream of the settings for `owner` if it is missing, otherwise check it."""
    with contextlib.closing(NatsConnection.connect(settings, name=name)) as connection:
        ready(connection, settings, pipeline=owner)


def _stream_config(settings: JetStreamSettings, pipeline: str) -> dict[str, Any]:
    stream = settings.stream
    max_age_ns = int(stream.max_age_hours * 3600 * _NS)
    window_ns = int(stream.duplicate_window_s * _NS)
    config = {
        "name": stream.name,
        "description": "Changes of a PostgreSQL database, by Tailrace.",
        "subjects": list(stream.subjects),
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "max_age": max_age_ns,
        "max_bytes": stream.max_bytes or -1,
        "max_msgs": stream.max_messages or -1,
        "num_replicas": stream.replicas,
        # The server refuses a duplicate window that is longer than max_age.
        "duplicate_window": min(window_ns, max_age_ns) if max_age_ns else window_ns,
        "metadata": {_OWNER: pipeline},
    }
    return config | ({"allow_atomic": True} if stream.atomic else {})


def compare(
    settings: JetStreamSettings, config: dict[str, Any], *, pipeline: str
) -> Iterator[Finding]:
    """What is wrong with an existing stream. Errors come first: `ready` stops at the first."""
    yield from _errors(settings, config)
    yield from _limits(config)
    yield from _duplicates(config)
    yield from _shorter_times(settings, config)
    yield from _subjects(settings, config)
    yield from _owner(config, pipeline)


def _errors(settings: JetStreamSettings, config: dict[str, Any]) -> Iterator[Finding]:
    """Settings that lose messages."""
    name = config["name"]
    if config.get("no_ack"):
        yield error(f"stream {name} does not acknowledge messages", "Recreate it without no_ack.")
    if config.get("sealed") or config.get("mirror"):
        yield error(
            f"stream {name} accepts no messages: it is sealed or a mirror",
            "Set stream.name to another stream.",
        )
    if config.get("retention") == "interest":
        yield error(
            f"stream {name} drops every message that has no subscriber",
            "Recreate it with limits retention.",
        )
    if config.get("storage") == "memory" and config.get("num_replicas", 1) == 1:
        yield error(
            f"stream {name} is in memory and lost when its server restarts",
            "Recreate it with file storage.",
        )
    if settings.atomic == "transaction" and not config.get("allow_atomic"):
        yield error(
            f"stream {name} does not allow atomic batches",
            f"nats stream edit {name} --allow-batch, with nats-server 2.12 or newer.",
        )


def _limits(config: dict[str, Any]) -> Iterator[Finding]:
    """Settings by which the stream drops messages that consumers may not have read."""
    name = config["name"]
    limited = max(config.get("max_msgs", -1), config.get("max_bytes", -1)) > 0
    if config.get("discard", "old") == "old" and limited:
        yield warning(
            f"stream {name} removes its oldest messages when it is full, read or not",
            f"nats stream edit {name} --discard=new",
        )
    if config.get("max_msgs_per_subject", -1) > 0:
        yield warning(
            f"stream {name} keeps only the last messages of each subject",
            f"nats stream edit {name} --max-msgs-per-subject=-1",
        )
    if config.get("storage") == "memory" and config.get("num_replicas", 1) > 1:
        yield warning(f"stream {name} is in memory", "Recreate it with file storage.")


def _duplicates(config: dict[str, Any]) -> Iterator[Finding]:
    """Settings by which reading back misses messages that were stored."""
    name = config["name"]
    later = "after an outage longer than the duplicate window, messages may be stored twice"
    if config.get("retention") == "workqueue":
        yield warning(
            f"stream {name} removes consumed messages: {later}",
            "Recreate it with limits retention.",
        )
    if config.get("subject_transform"):
        yield warning(
            f"stream {name} renames subjects: {later}",
            "Recreate it without subject_transform.",
        )


def _shorter_times(settings: JetStreamSettings, config: dict[str, Any]) -> Iterator[Finding]:
    """Times that are shorter than configured."""
    name, stream = config["name"], settings.stream
    window_s, age_s = config.get("duplicate_window", 0) / _NS, config.get("max_age", 0) / _NS
    configured_s = stream.max_age_hours * 3600
    if age_s and (age_s < configured_s or not configured_s):
        yield warning(
            f"stream {name} keeps messages for {age_s:g} s; consumers down for longer lose them",
            f"nats stream edit {name} --max-age={stream.max_age_hours:g}h",
        )
    if window_s < min(stream.duplicate_window_s, age_s or stream.duplicate_window_s):
        yield warning(
            f"stream {name} refuses repeated ids for {window_s:g} s only",
            f"nats stream edit {name} --dupe-window={stream.duplicate_window_s:g}s",
        )


def _subjects(settings: JetStreamSettings, config: dict[str, Any]) -> Iterator[Finding]:
    name, pattern = config["name"], pattern_of(settings.subject)
    if not any(matches(subject, pattern) for subject in config.get("subjects") or ()):
        yield warning(
            f"stream {name} does not accept {pattern}, the subjects of messages without a `route`",
            f"Add {pattern} to the subjects of {name}, or change `subject`.",
        )


def _owner(config: dict[str, Any], pipeline: str) -> Iterator[Finding]:
    name, owner = config["name"], (config.get("metadata") or {}).get(_OWNER, "")
    if pipeline and owner and owner != pipeline:
        yield warning(
            f"stream {name} was created for the pipeline {owner}; two pipelines with the same "
            "changes in one stream refuse each other's messages",
            "Use one stream per pipeline.",
        )
