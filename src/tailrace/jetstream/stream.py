"""The stream messages go to: made when it is missing, compared when it is there, never altered.

What would lose messages without a word is an error, and the sink does not open. What may surprise
somebody is a warning, and the sink says it once. `inspect` gives both to `tailrace check`.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import structlog

from tailrace.errors import SinkFullError, SinkRefusedError, SinkUnreachableError, TailraceError
from tailrace.finding import Finding, Severity
from tailrace.jetstream.line import Line
from tailrace.jetstream.subjects import matches, pattern_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.jetstream.settings import JetStreamSettings

_API = "$JS.API"
_NOT_FOUND = 10059
_RESOURCES = frozenset({10023, 10028, 10047})
_NOT_ENABLED = frozenset({10039, 10076})
_NS = 10**9
_NAME = re.compile(r"[^\s.*>/\\\x00-\x20\x7f]{1,255}")
_OWNER = "tailrace.pipeline"
_said: set[tuple[str, str]] = set()


def inspect(settings: JetStreamSettings, *, name: str = "check") -> list[Finding]:
    """What a `check` or `doctor` command should say about this sink. Changes nothing."""
    stream = settings.stream.name
    try:
        line = Line.connect(settings, name=name)
    except TailraceError as error:
        return [Finding(severity=Severity.ERROR, finding=str(error), fix=error.hint)]
    try:
        answer = look(line, stream)
        if answer is None:
            missing = f"stream {stream} does not exist; it will be created"
            return [Finding(severity=Severity.INFO, finding=missing)]
        found = list(compare(settings, answer["config"], pipeline=""))
    except TailraceError as error:
        return [Finding(severity=Severity.ERROR, finding=str(error), fix=error.hint)]
    finally:
        line.close()
    return found or [Finding(severity=Severity.OK, finding=f"stream {stream} is as it should be")]


def stream_info(settings: JetStreamSettings, stream: str) -> dict[str, Any]:
    """The server's own words about a stream: its config, its state, its cluster."""
    with contextlib.closing(Line.connect(settings, name="stream info")) as line:
        answer = look(line, stream)
    if answer is None:
        raise SinkRefusedError(f"there is no stream {stream}", hint="Check stream.name.")
    return answer


def probe(settings: JetStreamSettings, *, name: str) -> None:
    """An error unless the server answers for the stream, which need not be there yet."""
    with contextlib.closing(Line.connect(settings, name=name)) as line:
        look(line, settings.stream.name)


def look(line: Line, stream: str) -> dict[str, Any] | None:
    """STREAM.INFO; None when there is no such stream."""
    if _NAME.fullmatch(stream) is None:
        raise SinkRefusedError(
            f"{stream[:100]!r} is not the name of a stream",
            hint="Names have no blanks and none of . * > / \\",
        )
    answer = line.ask(f"{_API}.STREAM.INFO.{stream}")
    if answer.get("error", {}).get("err_code") == _NOT_FOUND:
        return None
    return checked(answer, f"look at stream {stream}")


def checked(answer: dict[str, Any], action: str) -> dict[str, Any]:
    """The answer, unless it is an error."""
    error = answer.get("error")
    if not error:
        return answer
    said = f"NATS cannot {action}: {error.get('description', 'no reason given')}"
    if error.get("err_code") in _RESOURCES:
        raise SinkFullError(said)
    if error.get("err_code") in _NOT_ENABLED:
        raise SinkRefusedError(said, hint="Enable JetStream on the server and for the account.")
    if error.get("code") == 503:
        raise SinkUnreachableError(said)
    raise SinkRefusedError(said)


def ready(line: Line, settings: JetStreamSettings, *, pipeline: str) -> dict[str, Any]:
    """The stream as it is, once it exists and holds what messages need."""
    name = settings.stream.name
    answer = look(line, name)
    if answer is None:
        wanted = _wanted(settings, pipeline)
        answer = checked(line.ask(f"{_API}.STREAM.CREATE.{name}", wanted), f"create stream {name}")
        structlog.get_logger().info("nats.stream-created", stream=name, subjects=wanted["subjects"])
    findings = list(compare(settings, answer["config"], pipeline=pipeline))
    for finding in findings:
        if finding.severity == "error":
            raise SinkRefusedError(finding.finding, hint=finding.fix)
        if (name, finding.finding) not in _said:
            _said.add((name, finding.finding))
            structlog.get_logger().warning(
                "nats.stream", stream=name, finding=finding.finding, fix=finding.fix
            )
    return answer


def _wanted(settings: JetStreamSettings, pipeline: str) -> dict[str, Any]:
    stream = settings.stream
    max_age_ns = int(stream.max_age_hours * 3600 * _NS)
    window_ns = int(stream.duplicate_window_s * _NS)
    wanted = {
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
        # The server refuses a window longer than messages live.
        "duplicate_window": min(window_ns, max_age_ns) if max_age_ns else window_ns,
        "metadata": {_OWNER: pipeline},
    }
    return wanted | ({"allow_atomic": True} if stream.atomic else {})


def compare(
    settings: JetStreamSettings, config: dict[str, Any], *, pipeline: str
) -> Iterator[Finding]:
    """What is wrong with a stream that is there."""
    yield from _losing(settings, config)
    yield from _surprising(settings, config, pipeline)


def _losing(settings: JetStreamSettings, config: dict[str, Any]) -> Iterator[Finding]:
    name = config["name"]
    if config.get("no_ack"):
        yield _error(f"stream {name} does not acknowledge messages", "Recreate it without no_ack.")
    if config.get("sealed") or config.get("mirror"):
        yield _error(f"stream {name} takes no messages: it is sealed or a mirror", "Use another.")
    if config.get("retention") == "interest":
        yield _error(
            f"stream {name} drops every message nobody has subscribed to",
            "Recreate it with limits retention.",
        )
    if config.get("storage") == "memory" and config.get("num_replicas", 1) == 1:
        yield _error(
            f"stream {name} is kept in memory and gone when its server restarts",
            "Recreate it with file storage.",
        )
    if settings.atomic == "transaction" and not config.get("allow_atomic"):
        yield _error(
            f"stream {name} does not allow atomic batches",
            f"nats stream edit {name} --allow-batch, with nats-server 2.12 or newer.",
        )


def _surprising(
    settings: JetStreamSettings, config: dict[str, Any], pipeline: str
) -> Iterator[Finding]:
    name = config["name"]
    limited = max(config.get("max_msgs", -1), config.get("max_bytes", -1)) > 0
    if config.get("discard", "old") == "old" and limited:
        yield _warning(
            f"stream {name} removes its oldest messages when it is full, read or not",
            f"nats stream edit {name} --discard=new",
        )
    if config.get("max_msgs_per_subject", -1) > 0:
        yield _warning(
            f"stream {name} keeps the last messages of a subject only",
            f"nats stream edit {name} --max-msgs-per-subject=-1",
        )
    if config.get("retention") == "workqueue":
        yield _warning(
            f"stream {name} removes what was consumed: after a cut longer than the duplicate "
            "window, messages may come twice",
            "Recreate it with limits retention.",
        )
    if config.get("subject_transform"):
        yield _warning(
            f"stream {name} renames subjects: after a cut longer than the duplicate window, "
            "messages may come twice",
            "Recreate it without subject_transform.",
        )
    if config.get("storage") == "memory" and config.get("num_replicas", 1) > 1:
        yield _warning(f"stream {name} is kept in memory", "Recreate it with file storage.")
    yield from _shorter(settings, config)
    pattern = pattern_of(settings.subject)
    if not any(matches(subject, pattern) for subject in config.get("subjects") or ()):
        yield _warning(
            f"stream {name} does not take {pattern}, where messages go without a `route`",
            f"Add {pattern} to the subjects of {name}, or change `subject`.",
        )
    owner = (config.get("metadata") or {}).get(_OWNER, "")
    if pipeline and owner and owner != pipeline:
        yield _warning(
            f"stream {name} was made for the pipeline {owner}; two pipelines with the same "
            "changes in one stream refuse each other's messages",
            "Give every pipeline a stream of its own.",
        )


def _shorter(settings: JetStreamSettings, config: dict[str, Any]) -> Iterator[Finding]:
    name, wanted = config["name"], settings.stream
    window_s, age_s = config.get("duplicate_window", 0) / _NS, config.get("max_age", 0) / _NS
    asked_s = wanted.max_age_hours * 3600
    if age_s and (age_s < asked_s or not asked_s):
        yield _warning(
            f"stream {name} keeps messages for {age_s:g} s; consumers down for longer lose them",
            f"nats stream edit {name} --max-age={wanted.max_age_hours:g}h",
        )
    if window_s < min(wanted.duplicate_window_s, age_s or wanted.duplicate_window_s):
        yield _warning(
            f"stream {name} refuses repeated ids for {window_s:g} s only",
            f"nats stream edit {name} --dupe-window={wanted.duplicate_window_s:g}s",
        )


def _error(finding: str, fix: str) -> Finding:
    return Finding(severity=Severity.ERROR, finding=finding, fix=fix)


def _warning(finding: str, fix: str) -> Finding:
    return Finding(severity=Severity.WARNING, finding=finding, fix=fix)
