"""What capture reads of the settings is what the plan of a change says that it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

from tailrace.capture.capture import Capture
from tailrace.config import Replication
from tailrace.run.processes import reads

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured
    from tests.fix_postgres import Database


class Read:
    """Settings that note which of their keys are read."""

    def __init__(
        self, settings: BaseModel, noted: set[tuple[str, ...]], path: tuple[str, ...] = ()
    ) -> None:
        self._settings, self._noted, self._path = settings, noted, path

    def __getattr__(self, name: str) -> Any:
        kind = type(self._settings)
        derived = getattr(kind, name, None)
        if isinstance(derived, property):
            assert derived.fget is not None
            return derived.fget(self)
        value = getattr(self._settings, name)
        if name not in kind.model_fields:
            return value
        path = (*self._path, name)
        if isinstance(value, BaseModel):
            return Read(value, self._noted, path)
        self._noted.add(path)
        return value


def test_capture_reads_what_is_declared(
    capture: Callable[..., Captured], database: Database
) -> None:
    """GIVEN a capture that streams and ends WHEN the keys that it read are noted THEN each of them
    is one for which a plan demands a restart; `pipelines` is for what the log keeps, and whether
    there are followers cannot change without one."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured = capture(database)
    captured.catch_up()
    database.execute("INSERT INTO t VALUES (1)")
    noted: set[tuple[str, ...]] = set()
    config = captured.config.model_copy(update={"replication": Replication()})
    noting = cast("Any", Read(config, noted))
    Capture(noting, stopping=lambda: False).run(until=captured.server_end())
    sections = {path[0] for path in noted}
    assert {"source", "log", "capture", "replication"} <= sections
    missing = {path for path in noted if not reads("capture", path)} - {
        ("pipelines",),
        ("replication", "followers"),
    }
    assert missing == set()
