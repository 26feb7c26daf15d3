"""A machine that has taken over continues with the small state of its former leader.

`tailrace run` does this before it starts anything. What a pipeline had on this machine moves to the
folder `replaced`. A crash in between leaves the rest to the next start.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

import structlog

from tailrace import private
from tailrace.errors import CorruptError
from tailrace.log import lease
from tailrace.log.store import LocalStore, sync_folder
from tailrace.replica.small_state import (
    BEGUN,
    CONTROL,
    FOLDERS,
    PINS,
    SHARED,
    SHARED_FOLDERS,
    SUFFIX,
    control_files,
    folder_of,
    pipeline_of,
    waiting,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNPACKED = "unpacked"
_REPLACED = "replaced"


def adopt(data: Path, log: Path) -> list[str]:
    """Put the bundles in place, unless this machine still follows. Returns their names."""
    store = LocalStore(log)
    if not waiting(data) or lease.follows(store):
        return []
    folder = folder_of(data)
    for path in folder.glob(f"*{SUFFIX}"):
        shutil.rmtree(data / _REPLACED / path.stem, ignore_errors=True)
        path.replace(path.with_suffix(BEGUN))
    names = []
    for path in sorted(folder.glob(f"*{BEGUN}")):
        unpacked = folder / _UNPACKED
        shutil.rmtree(unpacked, ignore_errors=True)
        _unpack(path, unpacked)
        if path.stem == SHARED:
            _place_shared(unpacked, data, store)
        else:
            _place(unpacked, data, path.stem)
        shutil.rmtree(unpacked, ignore_errors=True)
        path.unlink()
        names.append(path.stem)
    structlog.get_logger().info("replica.state_adopted", bundles=names)
    return names


def _unpack(archive: Path, folder: Path) -> None:
    hint = f"Remove {archive} to continue with what this machine has of its own."
    try:
        with tarfile.open(archive) as tar:
            for entry, content in _entries(tar):
                path = folder / _inside(entry, archive.stem)
                private.create_folder(path.parent)
                with private.create_file(path) as file:
                    shutil.copyfileobj(content, file)
                    file.flush()
                    os.fsync(file.fileno())
    except (tarfile.TarError, ValueError) as error:
        raise CorruptError(f"the bundle {archive}: {error}", hint=hint) from error
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)


def _entries(tar: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    for entry in tar:
        content = tar.extractfile(entry) if entry.isreg() else None
        if content is None:
            raise ValueError(f"{entry.name!r} is not a file")
        with content:
            yield entry, content


def _inside(entry: tarfile.TarInfo, bundle: str) -> PurePosixPath:
    """The path of a file below the data folder. Raises ValueError if it is not the bundle's."""
    path = PurePosixPath(entry.name)
    first, second = (*path.parts, "", "")[:2]
    pipeline = pipeline_of(bundle)
    if bundle == SHARED:
        own = first in (PINS, *SHARED_FOLDERS)
    elif first == CONTROL:
        own = second in control_files(pipeline)
    else:
        own = first in FOLDERS and second == pipeline
    if not own or ".." in path.parts or path.is_absolute():
        raise ValueError(f"{entry.name!r} is not part of it")
    return path


def _place(unpacked: Path, data: Path, bundle: str) -> None:
    pipeline = pipeline_of(bundle)
    places = [Path(folder, pipeline) for folder in FOLDERS]
    places += [Path(CONTROL, name) for name in control_files(pipeline)]
    for place in places:
        _replace(unpacked / place, data / place, data / _REPLACED / bundle / place.parent.name)


def _replace(new: Path, target: Path, kept: Path) -> None:
    """Move a file or folder to its place. What was there is kept, but not what a crash left."""
    if target.exists():
        if (kept / target.name).exists():
            _remove(target)
        else:
            private.create_folder(kept)
            target.replace(kept / target.name)
    if new.exists():
        private.create_folder(target.parent)
        new.replace(target)
        sync_folder(target.parent)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _place_shared(unpacked: Path, data: Path, store: LocalStore) -> None:
    for name in SHARED_FOLDERS:
        _replace(unpacked / name, data / name, data / _REPLACED / SHARED)
    for path in sorted((unpacked / PINS).glob("*")):
        store.write_atomic(path.name, path.read_bytes())
