"""What the watchdog knows at one moment. Values only; None is unknown.

`files` reads the files of the data folder and the kernel's, `source` asks PostgreSQL.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.position import Lsn, Position


UNANSWERED_S = 15.0
"""An answer of PostgreSQL that is older says nothing about now. The watchdog asks every two
seconds, and gives up after five."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The status file of a process."""

    pid: int
    age_s: float
    """Since it was written."""
    alive: bool
    """Whether a process with this id exists."""
    state: str = ""
    content: Mapping[str, object] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether it says that its process has stopped in order."""
        return self.state == "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFact:
    """A process as its supervisor reports it."""

    name: str
    state: str
    """waiting, running, backing-off, failed, stopped."""
    code: str = ""
    restarts: int = 0
    exit_code: int | None = None
    """Of its last run."""
    pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFact:
    """A pipeline as its process reports it."""

    name: str
    state: str = ""
    code: str = ""
    position: Position | None = None
    written: Mapping[int, Position] = field(default_factory=dict)
    """By lane, what a batch that lasts has written to the sink."""
    committed_at: float | None = None
    """Commit time of the last transaction delivered, in seconds since 1970."""
    refused: tuple[str, ...] = ()
    """Destinations that are refused while others are delivered."""
    parked: int | None = None
    delivered: int | None = None
    """Messages that the sink has accepted since the process started."""
    failures: int = 0
    """Attempts that failed since then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerFact:
    """A follower as its leader reports it."""

    address: str
    connected: bool
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFact:
    """The end of the log."""

    end: Position
    end_lsn: Lsn
    committed_at: float
    """Commit time of its last transaction, in seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFact:
    """The disk of a folder."""

    folder: str
    """`log` or `data`."""
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFact:
    """A certificate file that the settings name."""

    key: str
    """The key of the settings."""
    ends_at: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What the files say."""

    run: Report | None = None
    loaded_at: str = ""
    """When `tailrace run` has loaded its settings; empty if it is not known."""
    reports: Mapping[str, Report] = field(default_factory=dict)
    """By process: capture, pipelines, replicate, follow."""
    processes: tuple[ProcessFact, ...] = ()
    pipelines: tuple[PipelineFact, ...] = ()
    quorum: bool | None = None
    """Whether enough followers are connected; None if none are needed."""
    followers: tuple[FollowerFact, ...] = ()
    leader_connected: bool | None = None
    """On a follower, whether its leader is connected."""
    log: LogFact | None = None
    term: int | None = None
    """Of the log."""
    log_error: str = ""
    log_bytes: int | None = None
    disks: tuple[DiskFact, ...] = ()
    memory_bytes: int | None = None
    """The least within half a minute."""
    memory_limit_bytes: int | None = None
    certificates: tuple[CertificateFact, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """What PostgreSQL says."""

    error: str = ""
    """Why it did not answer; without a password."""
    code: str = ""
    standby: bool = False
    """It takes no heartbeats."""
    wal_end: Lsn | None = None
    slot_exists: bool | None = None
    slot_lost: str = ""
    """Why PostgreSQL has invalidated the slot; empty if it has not."""
    slot_misfit: str = ""
    """Why capture cannot read it."""
    taken_over: str = ""
    """The slot of a higher term."""
    active: bool = False
    confirmed: Lsn | None = None
    kept_wal_bytes: int | None = None
    safe_wal_bytes: int | None = None
    publication_exists: bool | None = None
    tables: int = 0
    beats: tuple[Beat, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A heartbeat that was committed."""

    lsn: Lsn
    """Where its message ends. Its transaction has this position, or a later one."""
    at: float
    """When it was sent, on the watchdog's monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything, at one moment."""

    now: float
    """The watchdog's monotonic clock."""
    time: float
    """Seconds since 1970."""
    running_s: float
    """Since the watchdog started."""
    files: FileFacts | None = None
    files_age_s: float = 0.0
    source: SourceFacts | None = None
    source_age_s: float = 0.0
    follower: bool = False
    """This machine follows a leader: it has no source."""
