"""Inline capture: another query that captures is waited for, another machine is an error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tailrace.errors import LogFencedError, TakenOverError
from tailrace.pipeline.source import inline

if TYPE_CHECKING:
    from pathlib import Path


def test_a_log_that_was_taken_over_ends_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = [LogFencedError("another query captures"), TakenOverError("slot s_e1 exists")]

    class Capture:
        def __init__(self, *_: object, **__: object) -> None:
            """Fails at once."""

        def run(self) -> None:
            raise outcomes.pop(0)

    monkeypatch.setattr(inline, "Capture", Capture)
    monkeypatch.setattr(inline, "_TAKE_OVER_INTERVAL_S", 0.0)
    options = SimpleNamespace(dsn="", slot="s", publication="p", log=tmp_path)
    capture = inline.InlineCapture(cast("Any", options))
    capture._run()
    assert outcomes == []
    with pytest.raises(TakenOverError, match="s_e1"):
        capture.check()
