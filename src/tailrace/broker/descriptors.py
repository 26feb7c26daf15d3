"""File descriptors: every client needs one, and most systems allow a process 1,024 by default."""

from __future__ import annotations

import resource

from tailrace.errors import ConfigError

SPARE = 256
"""For connections to PostgreSQL and HTTP, listeners, files and libraries."""


def raise_limit(connections: int) -> None:
    """Raise the limit of open files of this process, so that so many clients can connect."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = required(connections, soft=soft, hard=hard)
    if needed is None:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (OSError, ValueError) as error:
        raise _too_few(connections, soft) from error


def required(connections: int, *, soft: int, hard: int) -> int | None:
    """The soft limit to set; None if the present one suffices. An error if `hard` does not.

    >>> required(1000, soft=1024, hard=4096)
    1256
    """
    needed = connections + SPARE
    if _reaches(soft, needed):
        return None
    if not _reaches(hard, needed):
        raise _too_few(connections, hard)
    return needed


def _reaches(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed


def _too_few(connections: int, limit: int) -> ConfigError:
    return ConfigError(
        f"{connections:,} clients need {connections + SPARE:,} open files, but this process may "
        f"have {limit:,}",
        hint="Raise the hard limit (LimitNOFILE of systemd, ulimit -Hn), or lower "
        "--max-connections.",
    )
