"""Who sends a request, and what that person or program may do."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.IntEnum):
    """What a request may do. Each level includes the ones before it."""

    PUBLIC = 0
    """States and figures, while no users are configured."""
    VIEWER = 1
    """Read everything, also rows of parked messages."""
    OPERATOR = 2
    """Change the running system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The sender of a request."""

    name: str = ""
    """Recorded in the audit file; empty for PUBLIC."""
    level: Level = Level.PUBLIC
    token: str = ""
    """Id of the token of `tailrace token`: a session that was opened with it ends with it."""
    csrf: str = ""
    """What forms of this session carry; empty unless the request belongs to a session."""


PUBLIC = Identity()
