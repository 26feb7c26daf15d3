"""A plan as text and as a document for programs. Neither has a secret."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tailrace.run.plan import Effect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.run.plan import KeyChange, ObjectChange, Plan

_MAX_CHARACTERS = 200
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_RESTARTS = {
    "pipelines": "all pipelines stop in order and resume at their checkpoints",
    "serve": "the HTTP endpoints pause for a moment, and the console asks for a login again",
    "watch": "the watchdog continues with its alerts",
    "replicate": "followers connect again",
}


def plan_lines(plan: Plan) -> Iterator[str]:
    """A plan, one line per object and changed key, then what a reload does."""
    for each in plan.objects:
        yield f"{_SIGNS[each.action]} {each.title}: {each.action}; effect: {each.effect.value}"
        if each.action == "changed":
            yield from (f"    {_name(each, key)}: {_values(key)}" for key in each.keys)
        yield from (f"    ({reason})" for reason in each.reasons)
    yield from summary_lines(plan)


def summary_lines(plan: Plan) -> Iterator[str]:
    """What a reload does, or why it is refused."""
    for path in plan.overridden:
        yield f"{'.'.join(path)} is set by an option or a variable; the file is not read for it."
    if not plan.objects:
        yield "No difference: the file has the settings that run."
    elif plan.blocked:
        names = ", ".join(each.title for each in plan.blocked)
        yield f"A reload is refused as a whole because of: {names}."
    elif not plan.processes:
        yield "A reload restarts no process. Capture continues."
    else:
        yield f"A reload restarts {', '.join(plan.processes)}. Capture continues."
        yield from (f"{name}: {_RESTARTS[name]}." for name in plan.processes)


def plan_document(plan: Plan) -> dict[str, Any]:
    """A plan for programs."""
    return {
        "file": str(plan.file),
        "changed": bool(plan.objects),
        "applicable": not plan.blocked,
        "restarts": list(plan.processes),
        "digest": plan.digest,
        "overridden": [".".join(path) for path in plan.overridden],
        "summary": list(summary_lines(plan)),
        "objects": [
            {
                "object": each.title, "kind": each.kind, "name": each.name,
                "action": each.action, "effect": each.effect.value,
                "blocks": each.effect.blocks, "reasons": list(each.reasons),
                "keys": [_key_document(key) for key in each.keys],
            }
            for each in plan.objects
        ],
    }  # fmt: skip


def _key_document(key: KeyChange) -> dict[str, Any]:
    values = {} if key.secret else {"old": key.old, "new": key.new}
    return {"key": key.key, "secret": key.secret, "effect": key.effect.value, **values}


def _name(change: ObjectChange, key: KeyChange) -> str:
    return ".".join(key.path[len(change.place) :]) or key.key


def _values(key: KeyChange) -> str:
    text = "changed (secret)" if key.secret else f"{_text(key.old)} → {_text(key.new)}"
    return f"{text}; effect: nothing" if key.effect is Effect.NOTHING else text


def _text(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."
