"""What the small state of a machine is: names of bundles, and the folders that they hold.

Everything here is below the data folder, but for the pins, which are in the log's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CHECKPOINTS = "checkpoints"
FOLDERS = (CHECKPOINTS, "backfills", "snapshots", "schemas", "sinks", "parked")
"""Folders with a folder per pipeline, in the order in which they are read."""
CONTROL = "control"
SHARED = "shared"
"""The bundle of what pipelines share."""
SHARED_FOLDERS = ("silent",)
PINS = "pins"
SUFFIX, BEGUN = ".tar", ".adopting"
"""Ends of the names of bundles on a follower: received, and being put in place."""
_PREFIX = "pipeline."


def bundle_of(pipeline: str) -> str:
    """The name of a pipeline's bundle."""
    return f"{_PREFIX}{pipeline}"


def pipeline_of(bundle: str) -> str:
    """The pipeline whose bundle it is."""
    return bundle.removeprefix(_PREFIX)


def control_files(pipeline: str) -> tuple[str, ...]:
    """The files of a pipeline in the folder `control`."""
    return f"{pipeline}.json", f"{pipeline}.moved.json"


def folder_of(data: Path) -> Path:
    """Where a follower keeps its leader's bundles."""
    return data / "replica"


def waiting(data: Path) -> bool:
    """Whether there are bundles that this machine has received and does not use yet."""
    return any(path.suffix in (SUFFIX, BEGUN) for path in folder_of(data).glob("*"))
