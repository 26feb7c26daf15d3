"""The files of a sink's `tls_` settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import SinkRefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def readable(files: Mapping[str, Path | None]) -> dict[str, str]:
    """Those that are set, by the names of the client library. Raises an error that names a file:
    client libraries do not."""
    for path in filter(None, files.values()):
        try:
            path.open("rb").close()
        except OSError as error:
            raise SinkRefusedError(
                f"{path} cannot be read: {error.strerror}", hint="Check the `tls_` settings."
            ) from error
    return {name: str(path) for name, path in files.items() if path is not None}
