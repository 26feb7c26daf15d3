"""Writes the reference pages that are generated from code: `make docs`. A test compares them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, get_origin

from pydantic import SecretStr

from tailrace.config import Config, section_of
from tailrace.errors import TailraceError
from tailrace.sinks.registry import SINKS
from tailrace.sinks.sink_type import Promises, SinkSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

REFERENCE = Path(__file__).parent / "reference"
_SOURCE = Path(__file__).parent.parent / "src"


def configuration() -> str:
    """Every key of tailrace.yml."""
    lines = [
        "# Configuration",
        "",
        "The keys of `tailrace.yml`. An empty file is valid; a pipeline needs a sink. `${NAME}`",
        "and `${NAME:-default}` in strings are replaced from the environment. Unknown keys are",
        "errors.",
    ]
    plain = {name: field for name, field in Config.model_fields.items() if _plain(field)}
    lines += ["", "## Top level", "", *_TABLE, *_keys(plain)]
    for name, field in Config.model_fields.items():
        if not _plain(field):
            lines += _section(name, field)
    return "\n".join(lines) + "\n"


_TABLE = ["| key | default | description |", "|---|---|---|"]


def _section(name: str, field: FieldInfo) -> Iterator[str]:
    """A section, then the sections inside it."""
    model = section_of(field.annotation)
    assert model is not None
    origin = get_origin(field.annotation)
    path = f"{name}.NAME" if origin is dict else f"{name}[]" if origin is tuple else name
    about = (model.__doc__ or "") if origin is dict else str(field.description)
    yield from ("", f"## {path}", "", about, "", *_TABLE)
    fields = model.model_fields
    plain = {key: inner for key, inner in fields.items() if _plain(inner)}
    yield from _keys(plain, field.default)
    for key, inner in fields.items():
        if section_of(inner.annotation) is SinkSettings:
            yield from _sinks(f"{path}.{key}")
        elif not _plain(inner):
            yield from _section(f"{path}.{key}", inner)


def _sinks(path: str) -> Iterator[str]:
    """One section per registered sink, then the sections inside it."""
    for sink in SINKS.all():
        fields = sink.settings.model_fields
        yield from ("", f"## {path}, type {sink.name}", "", f"{sink.title}.", "", *_TABLE)
        yield from _keys({key: each for key, each in fields.items() if _plain(each)})
        for key, each in fields.items():
            if not _plain(each):
                yield from _section(f"{path}.{key}", each)


def _plain(field: FieldInfo) -> bool:
    return section_of(field.annotation) is None


def _keys(fields: dict[str, FieldInfo], section: object = None) -> Iterator[str]:
    """The keys of a section. `section` is its own default, if it differs from the model's."""
    for key, field in fields.items():
        default = getattr(section, key, field.default)
        if isinstance(default, SecretStr):
            default = default.get_secret_value()
        if isinstance(default, tuple):
            default = ", ".join(default)
        shown = "(required)" if field.is_required() else f"`{default}`"
        empty = default in ("", None) or default == {}
        yield f"| `{key}` | {'(empty)' if empty else shown} | {field.description} |"


def sinks() -> str:
    """What each registered sink promises."""
    lines = [
        "# Sinks",
        "",
        "The registered sinks and what each of them promises. Keys:",
        "[configuration](configuration.md). Other packages add sinks through the entry-point group",
        f"`{SINKS.group}`.",
    ]
    for sink in SINKS.all():
        lines += ["", f"## {sink.name}", "", f"{sink.title}. {sink.__class__.__doc__}", ""]
        lines += ["| | |", "|---|---|"]
        for field in dataclasses.fields(Promises):
            value = getattr(sink.promises, field.name)
            lines.append(f"| {field.name.replace('_', ' ')} | {value} |")
    return "\n".join(lines) + "\n"


def errors() -> str:
    """Every error with its code, exit code, retry policy and hint."""
    lines = [
        "# Errors and exit codes",
        "",
        "The errors that Tailrace reports, and what to do. `tailrace run` retries errors with",
        "`retry: back-off` without an operator. `tailrace capture` alone ends if its first",
        "connection fails, and with DISK_FULL.",
        "",
        "| code | exit | retry | meaning | hint |",
        "|---|---|---|---|---|",
    ]
    for kind in sorted(_kinds(TailraceError), key=lambda kind: kind.exit_code):
        meaning = " ".join((kind.__doc__ or "").split())
        lines.append(
            f"| {kind.code} | {kind.exit_code} | {kind.retry.value} | {meaning} "
            f"| {kind.default_hint} |"
        )
    return "\n".join(lines) + "\n"


def _kinds(kind: type[TailraceError]) -> Iterator[type[TailraceError]]:
    for child in kind.__subclasses__():
        if "code" in vars(child):
            yield child
        yield from _kinds(child)


def failpoints() -> str:
    """Every failpoint, from the places that pass one."""
    pattern = re.compile(r'failpoint\.(?:hit|armed)\("([^"]+)"\)')
    names = {
        name: str(path.relative_to(_SOURCE))
        for path in sorted(_SOURCE.rglob("*.py"))
        for name in pattern.findall(path.read_text())
    }
    lines = [
        "# Failpoints",
        "",
        "Named places where a test can end the process or make the disk fail:",
        "`TAILRACE_FAILPOINTS=log.before-sync=kill@3` acts the third time the place is reached.",
        "Actions: `kill`, `enospc`, `eio`, `sleep`. For tests of Tailrace and of systems built on",
        "it; never set it in production.",
        "",
        "| name | file |",
        "|---|---|",
        *(f"| `{name}` | `{path}` |" for name, path in sorted(names.items())),
    ]
    return "\n".join(lines) + "\n"


PAGES = {
    "configuration.md": configuration,
    "errors.md": errors,
    "sinks.md": sinks,
    "failpoints.md": failpoints,
}

if __name__ == "__main__":
    for page, generate in PAGES.items():
        (REFERENCE / page).write_text(generate())
