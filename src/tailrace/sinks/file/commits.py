"""The records of a pipeline below `_tailrace/`: what it has delivered, and who may go on.

Each lane has numbered records. The newest one counts. It holds the lane's progress, the files that
are being moved to their final names, and the token of the sink that wrote it:

    _tailrace/cdc_slot.orders/0/00000000000000000042.commit
    _tailrace/cdc_slot.orders/0/3f5c...-7.tmp                 a file without its final name

A record is created only if there is none with its number. So of two sinks of a lane one wins, and
the other one is fenced: it has stored files under temporary names only. What a sink that takes over
finds after a crash:

| the last sink died                | what is left                     | what happens             |
|-----------------------------------|----------------------------------|--------------------------|
| while it wrote temporary files    | temporary files                  | they are deleted         |
| after it created the record       | a record and its temporary files | they are moved           |
| while it moved files              | a record, some temporary files   | the others are moved     |
| before it deleted the old record  | two records                      | the older one is deleted |

The replay is then compared with the progress, not with the files: it may be cut at other messages.
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from tailrace.checkpoint import RESET
from tailrace.errors import DivergedError, SinkFencedError, SinkRefusedError
from tailrace.position import Position
from tailrace.sinks.file.destination import token
from tailrace.sinks.file.progress import Positions, Progress
from tailrace.sinks.file.store import Move

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tailrace.sinks.contract import Lane
    from tailrace.sinks.file.store import Store

FOLDER = "_tailrace"
_VERSION = 1
_SUFFIX = ".commit"
_ATTEMPTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A record."""

    history: str
    token: str
    progress: Progress
    files: tuple[Move, ...] = ()

    def dump(self) -> bytes:
        """The content of its file."""
        return json.dumps(
            {
                "version": _VERSION,
                "history": self.history,
                "token": self.token,
                "position": str(self.progress.complete),
                "beyond": self.progress.beyond.dump(),
                "files": [[move.temporary, move.final] for move in self.files],
            },
            indent=1,
        ).encode()

    @classmethod
    def load(cls, name: str, content: bytes) -> Self:
        """Read the content of its file."""
        try:
            values = json.loads(content)
            if values["version"] != _VERSION:
                raise SinkRefusedError(
                    f"{name} has version {values['version']}, this Tailrace reads {_VERSION}",
                    hint="Run the version of Tailrace that wrote it.",
                )
            return cls(
                history=values["history"],
                token=values["token"],
                progress=Progress(
                    complete=Position.parse(values["position"]),
                    beyond=Positions.load(values["beyond"]),
                ),
                files=tuple(Move(temporary=old, final=new) for old, new in values["files"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise SinkRefusedError(
                f"{name} is not a record of this sink: {error!r}",
                hint="Restore it. Without it, messages may be delivered twice.",
            ) from error


@dataclass(slots=True)
class _Listing:
    """The files of a pipeline below `_tailrace/`."""

    numbers: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The numbers of the records of each lane."""
    temporary: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        made = cls()
        for name in names:
            lane, _, file = name.split("/", 2)[-1].partition("/")
            if not lane.isdecimal():
                continue
            if file.endswith(_SUFFIX) and file.removesuffix(_SUFFIX).isdecimal():
                made.numbers[int(lane)].append(int(file.removesuffix(_SUFFIX)))
            else:
                made.temporary[int(lane)].append(name)
        return made


class Commits:
    """The records of one lane, and its view of the other lanes'."""

    def __init__(self, store: Store, lane: Lane) -> None:
        self._store = store
        self._lane = lane
        self._folder = f"{FOLDER}/{token(lane.owner)}"
        self._token = uuid.uuid4().hex
        self._number = 0
        self._files = 0

    def temporary(self) -> str:
        """A new temporary name."""
        self._files += 1
        return f"{self._folder}/{self._lane.number}/{self._token}-{self._files}.tmp"

    def take_over(self) -> tuple[Progress, Progress]:
        """Finish what the last sink of the lane left, and fence it.

        Returns what all lanes have delivered, and what the lane's own records have to hold of it.
        """
        for _ in range(_ATTEMPTS):
            listing = _Listing.of(self._store.names(self._folder))
            try:
                newest = {
                    lane: self._read(lane, max(found)) for lane, found in listing.numbers.items()
                }
            except FileNotFoundError:
                # Another sink has created a newer record and deleted this one.
                continue
            delivered, own = self._view(newest)
            # Also of lanes that the pipeline no longer has.
            self._store.publish([move for commit in newest.values() for move in commit.files])
            self._number = max(listing.numbers[self._lane.number], default=0)
            try:
                self._append(own, ())
            except SinkFencedError:
                continue
            self._clean(listing)
            return delivered, own
        raise SinkFencedError(
            f"another sink of lane {self._lane.number} takes it over all the time"
        )

    def _view(self, newest: dict[int, Commit]) -> tuple[Progress, Progress]:
        """What all lanes have delivered, and what the lane's own records have to hold of it."""
        lane = self._lane
        own = delivered = Progress()
        for number, commit in newest.items():
            if commit.history != lane.history:
                if not lane.reset:
                    raise DivergedError(
                        f"{self._folder} holds the position of lane {number} in the log "
                        f"{commit.history or 'without an id'}, but this log is "
                        f"{lane.history or 'without an id'}",
                        hint=f"{RESET} If both are in use: each needs a `url` of its own.",
                    )
                continue
            delivered |= commit.progress
            if number == lane.number:
                own = commit.progress
        # Every record has the last position up to which all lanes are complete: that of one lane
        # would be lost if the number of lanes changes and another lane gets its number.
        return delivered, own | Progress(complete=delivered.complete)

    @property
    def owned(self) -> bool:
        """Whether no other sink has taken over."""
        return self._newest() == self._number

    def check_owner(self) -> None:
        """Raise SinkFencedError if another sink has taken over."""
        if not self.owned:
            raise self._fenced()

    def commit(self, progress: Progress, files: Sequence[Move]) -> None:
        """Record progress and files, then give the files their final names.

        Raises SinkFencedError, before a file has its final name, if another sink has taken over.
        """
        self._append(progress, files)
        self._store.publish(files)
        self._store.remove([self._name(self._lane.number, self._number - 1)])

    def _append(self, progress: Progress, files: Sequence[Move]) -> None:
        name = self._name(self._lane.number, self._number + 1)
        commit = Commit(
            history=self._lane.history, token=self._token, progress=progress, files=tuple(files)
        )
        data = commit.dump()
        self.check_owner()
        try:
            self._store.create(name, data)
        except FileExistsError:
            # A client that lost the answer to its first attempt finds its own record.
            if self._store.read(name) != data:
                raise self._fenced() from None
        # The record may have been created before, and deleted after newer ones.
        if self._newest() > self._number + 1:
            raise self._fenced()
        self._number += 1

    def _fenced(self) -> SinkFencedError:
        return SinkFencedError(
            f"another sink of pipeline {self._lane.pipeline} has taken over lane "
            f"{self._lane.number}"
        )

    def _newest(self) -> int:
        """The number of the lane's newest record."""
        number = self._lane.number
        listing = _Listing.of(self._store.names(f"{self._folder}/{number}"))
        return max(listing.numbers[number], default=0)

    def _clean(self, listing: _Listing) -> None:
        """Delete what the last sink left: it can no longer commit. Its files are moved by now."""
        number, lanes = self._lane.number, self._lane.lanes
        old = [self._name(number, each) for each in listing.numbers[number]]
        for lane, names in listing.temporary.items():
            # The first lane also cleans up after lanes that the pipeline no longer has.
            if lane == number or (number == 0 and lane >= lanes):
                old += names
        self._store.remove(old)

    def _read(self, lane: int, number: int) -> Commit:
        name = self._name(lane, number)
        return Commit.load(name, self._store.read(name))

    def _name(self, lane: int, number: int) -> str:
        return f"{self._folder}/{lane}/{number:020d}{_SUFFIX}"
