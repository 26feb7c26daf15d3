"""What runs? What does the file say, and what would it change? Without secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.config.document import leaves, masked
from tailrace.errors import TailraceError
from tailrace.run.loaded import loaded_file, shown
from tailrace.run.plan import propose
from tailrace.run.plan_text import plan_document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.console.page import Document
    from tailrace.console.system import System
    from tailrace.run.loaded import Loaded


def settings(system: System, query: Mapping[str, str]) -> Document:
    """The settings that run, as a tree and as lines, and the plan of the settings file."""
    del query
    loaded = loaded_file(system.config.data).read_or(None)
    tree = shown(loaded.settings) if loaded is not None else masked(system.config)
    lines = [[".".join(path), value] for path, value in leaves(tree)]
    return {"settings": tree, "lines": lines, **_difference(system, loaded)}


def _difference(system: System, loaded: Loaded | None) -> dict[str, Any]:
    """What the file would change, or why that is unknown."""
    if loaded is None:
        # A server that runs alone, or of a command without a settings file of yours.
        return {"loaded": None, "plan": None, "error": None}
    about = {
        "file": loaded.file, "at": loaded.at.isoformat(), "orders": loaded.orders,
        "refusal": loaded.refusal, "hint": loaded.hint,
    }  # fmt: skip
    try:
        _, plan = propose(system.config.data)
    except TailraceError as error:
        problem = {"code": error.code, "text": str(error), "hint": error.hint}
        return {"loaded": about, "plan": None, "error": problem}
    return {"loaded": about, "plan": plan_document(plan), "error": None}
