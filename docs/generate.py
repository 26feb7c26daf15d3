"""Writes the reference pages that come from code: `make docs`. A test checks they are fresh."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from tailrace.config import Config
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel

REFERENCE = Path(__file__).parent / "reference"
_SOURCE = Path(__file__).parent.parent / "src"


def configuration() -> str:
    """Every key of tailrace.yml."""
    lines = [
        "# Configuration",
        "",
        "The keys of `tailrace.yml`. All have defaults; an empty file is valid. `${NAME}` and",
        "`${NAME:-default}` in strings come from the environment. Unknown keys are errors.",
    ]
    for name, section in Config.model_fields.items():
        model = section.annotation
        assert isinstance(model, type)
        lines += ["", f"## {name}", "", f"{section.description}", ""]
        lines += ["| key | default | meaning |", "|---|---|---|", *_keys(model)]
    return "\n".join(lines) + "\n"


def _keys(model: type[BaseModel]) -> Iterator[str]:
    for key, field in model.model_fields.items():
        default = field.default
        if isinstance(default, SecretStr):
            default = default.get_secret_value()
        yield f"| `{key}` | `{str(default) or '(empty)'}` | {field.description} |"


def errors() -> str:
    """Every error with its code, exit code, retry policy and hint."""
    lines = [
        "# Errors and exit codes",
        "",
        "What Tailrace says when it stops, and what to do. `retry: back-off` is tried again by",
        "itself once the first connection has worked.",
        "",
        "| code | exit | retry | what it means | hint |",
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
    for each in kind.__subclasses__():
        if "code" in vars(each):
            yield each
        yield from _kinds(each)


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
        "Named places where a test can end the process or fail the disk:",
        "`TAILRACE_FAILPOINTS=log.before-sync=kill@3` acts the third time the place is passed.",
        "Actions: `kill`, `enospc`, `eio`, `sleep`. For tests of Tailrace and of what stands on",
        "it; never set it in production.",
        "",
        "| name | where |",
        "|---|---|",
        *(f"| `{name}` | `{path}` |" for name, path in sorted(names.items())),
    ]
    return "\n".join(lines) + "\n"


PAGES = {
    "configuration.md": configuration,
    "errors.md": errors,
    "failpoints.md": failpoints,
}

if __name__ == "__main__":
    for page, make in PAGES.items():
        (REFERENCE / page).write_text(make())
