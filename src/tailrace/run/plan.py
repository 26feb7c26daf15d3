"""What a changed settings file would do to the running system, object by object.

`tailrace plan` and the console show a plan; a reload carries out the same one (`run.reloads`): it
restarts `Plan.processes`, and is refused as a whole if `Plan.blocked` has anything.

    change of a key                                         effect
    that nothing reads, such as `start` of a pipeline that has run   nothing
    that only processes read which a reload restarts        reload, or pipeline restart
    that capture reads, or that adds or removes a process   restart of `tailrace run`
    that `tailrace run` refuses                             refused
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tailrace import checkpoint
from tailrace.access.access import check_protection
from tailrace.config import load
from tailrace.config.document import at, leaves, replaced
from tailrace.errors import ConfigError
from tailrace.run.loaded import Digests, digest_of, is_secret, running, shown
from tailrace.run.processes import FIXED, RUN_READS, Roster, reads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.config import Config
    from tailrace.config.document import KeyPath
    from tailrace.run.loaded import Loaded

Action = Literal["added", "removed", "changed"]
_COLLECTIONS: dict[KeyPath, str] = {
    ("pipelines",): "pipeline",
    ("http", "users"): "user",
    ("alerts", "channels"): "alert channel",
}
"""Keys with objects by name; every other section is an object itself."""
_INSECURE = ("http", "insecure")


class Effect(enum.Enum):
    """What a change does to the running system, in the order of its weight."""

    NOTHING = "nothing"
    RELOAD = "reload"
    PIPELINE = "pipeline restart"
    RUN = "restart of tailrace run"
    REFUSED = "refused"

    @property
    def blocks(self) -> bool:
        """Whether a reload is refused because of it."""
        return self in (Effect.RUN, Effect.REFUSED)


_WEIGHT = list(Effect)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """A key with another value. Of a secret, neither value is known."""

    path: KeyPath
    old: Any
    new: Any
    secret: bool
    effect: Effect
    reason: str

    @property
    def key(self) -> str:
        """The key with its sections."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectChange:
    """A section, pipeline, user or channel that is added, removed or changed."""

    kind: str
    place: KeyPath
    action: Action
    keys: tuple[KeyChange, ...]
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in its collection, or that of the section."""
        return self.place[-1]

    @property
    def title(self) -> str:
        """What it is, in words: `pipeline orders`."""
        return f"{self.kind} {self.name}"

    @property
    def effect(self) -> Effect:
        """The weightiest effect of its keys."""
        return max((each.effect for each in self.keys), key=_WEIGHT.index)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it has its effect, then what else is to be known."""
        effect = self.effect
        given = (each.reason for each in self.keys if each.effect is effect and each.reason)
        return (*dict.fromkeys(given), *self.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The difference between what runs and a settings file, with its effect."""

    file: Path
    objects: tuple[ObjectChange, ...]
    processes: tuple[str, ...]
    """The processes that a reload restarts."""
    digest: str
    """Of the settings in the file."""
    overridden: tuple[KeyPath, ...] = ()

    @property
    def blocked(self) -> tuple[ObjectChange, ...]:
        """What a reload is refused for."""
        return tuple(each for each in self.objects if each.effect.blocks)

    def check(self) -> None:
        """Raise ConfigError if a reload would be refused: nothing is applied by half."""
        if not self.blocked:
            return
        keys = [
            key.key for each in self.blocked for key in each.keys if key.effect.blocks
        ]  # fmt: skip
        refused = [each for each in self.blocked if each.effect is Effect.REFUSED]
        if refused:
            raise ConfigError(f"{refused[0].title} is refused: {refused[0].reasons[0]}")
        more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
        raise ConfigError(
            f"a restart of `tailrace run` is needed for {', '.join(keys[:3])}{more}",
            hint="Restart `tailrace run`, or remove these changes from the file. Nothing was "
            "applied.",
        )


def propose(data: Path, file: Path | None = None) -> tuple[Loaded, Plan]:
    """What runs on a data folder, and the plan of a settings file, or of the one it has loaded."""
    loaded = running(data)
    file = file or Path(loaded.file)
    return loaded, plan(loaded, load(file, on_disk=True), file, Digests.of(data), data)


def plan(loaded: Loaded, config: Config, file: Path, digests: Digests, data: Path) -> Plan:
    """What loading the settings of a file would do. `data` is the folder of what runs."""
    before, after = loaded.settings, digests.document(config)
    for path in loaded.overridden:
        after = replaced(after, path, at(before, path))
    effects = _Effects(before, after, lambda name: _started(data, name), _refusal(config, after))
    objects = tuple(_objects(before, after, effects))
    changed = [
        key.path for each in objects for key in each.keys if key.effect is not Effect.NOTHING
    ]
    restarted = tuple(
        name
        for name in Roster.of(before).names
        if name not in FIXED and any(reads(name, path) for path in changed)
    )
    return Plan(
        file=file, objects=objects, processes=restarted, digest=digest_of(after),
        overridden=loaded.overridden,
    )  # fmt: skip


def _started(data: Path, pipeline: str) -> bool:
    return checkpoint.read_start(checkpoint.folder_of(data, pipeline)) is not None


def _refusal(config: Config, after: dict[str, Any]) -> str:
    http = config.http.model_copy(update={"insecure": bool(at(after, _INSECURE))})
    try:
        check_protection(http)
    except ConfigError as error:
        return str(error)
    return ""


@dataclass(frozen=True, slots=True)
class _Effects:
    before: dict[str, Any]
    after: dict[str, Any]
    started: Callable[[str], bool]
    refusal: str

    def of(self, path: KeyPath) -> tuple[Effect, str]:
        """The effect of another value of a key, and why."""
        if path[0] == "http" and self.refusal:
            return Effect.REFUSED, self.refusal
        old = Roster.of(self.before)
        if reason := self._restart(path, old):
            return Effect.RUN, reason
        if reason := self._unread(path, old):
            return Effect.NOTHING, reason
        restarts = old.pipelines and reads("pipelines", path)
        return (Effect.PIPELINE if restarts else Effect.RELOAD), ""

    def _restart(self, path: KeyPath, old: Roster) -> str:
        """Why a key needs a restart of all; empty if it does not."""
        if path == ("data",):
            return "all state of the running system is in that folder"
        if reason := _other_process(path, old, Roster.of(self.after)):
            return reason
        if path in RUN_READS and old.replicated:
            return "`tailrace run` reads it when it starts"
        fixed = [name for name in old.names if name in FIXED and reads(name, path)]
        return f"the process {fixed[0]} reads it when it starts" if fixed else ""

    def _unread(self, path: KeyPath, old: Roster) -> str:
        """Why no running process has a use for a key; empty if one has."""
        if path[0] == "pipelines" and path[2:] == ("start",) and self.started(path[1]):
            return (
                "only a pipeline that has not run begins there: `tailrace pipeline rewind` and "
                "`skip` move it"
            )
        if path[0] == "replication" and not old.replicated:
            return "only read with followers, or by `tailrace follow`"
        return ""


def _other_process(path: KeyPath, old: Roster, new: Roster) -> str:
    """Why a key adds or removes a process; empty if it does not."""
    section = path[0]
    if section == "pipelines" and old.pipelines != new.pipelines:
        what = "the first pipeline needs" if new.pipelines else "the last pipeline ends"
        return f"{what} the process pipelines"
    if path == ("replication", "followers") and old.replicated != new.replicated:
        return f"the process replicate is {'added' if new.replicated else 'removed'}"
    if section == "alerts" and old.watched != new.watched:
        return f"the process watch is {'added' if new.watched else 'removed'}"
    return ""


def _objects(
    before: dict[str, Any], after: dict[str, Any], effects: _Effects
) -> Iterator[ObjectChange]:
    """The objects that differ: in the order of the running settings, then those that are new."""
    found: dict[KeyPath, list[KeyChange]] = {}
    for path in _changed_keys(before, after):
        old, new = at(before, path), at(after, path)
        effect, reason = effects.of(path)
        change = KeyChange(
            path=path, old=shown(old), new=shown(new),
            secret=_has_secret(old) or _has_secret(new), effect=effect, reason=reason,
        )  # fmt: skip
        found.setdefault(_object_of(path), []).append(change)
    for place, keys in found.items():
        old, new = at(before, place), at(after, place)
        kind = _COLLECTIONS.get(place[:-1], "section")
        action: Action = "added" if old is None else "removed" if new is None else "changed"
        notes = _notes(effects, kind, place[-1], action)
        yield ObjectChange(
            kind=kind, place=place, action=action, keys=tuple(keys), notes=tuple(notes)
        )


def _object_of(path: KeyPath) -> KeyPath:
    """The object that a key belongs to.

    >>> _object_of(("http", "users", "ann", "role")), _object_of(("http", "port"))
    (('http', 'users', 'ann'), ('http',))
    """
    for place in _COLLECTIONS:
        if path[: len(place)] == place and len(path) > len(place):
            return path[: len(place) + 1]
    return path[:1]


def _changed_keys(before: dict[str, Any], after: dict[str, Any]) -> Iterator[KeyPath]:
    for path in dict.fromkeys(key for tree in (before, after) for key, _ in leaves(tree)):
        old, new = at(before, path), at(after, path)
        # A section that only one side has counts by its keys.
        sections = any(isinstance(each, dict) and each for each in (old, new))
        if old != new and not sections:
            yield path


def _has_secret(value: object) -> bool:
    if isinstance(value, list):
        return any(map(_has_secret, value))
    return is_secret(value)


def _notes(effects: _Effects, kind: str, name: str, action: Action) -> Iterator[str]:
    if kind != "pipeline":
        return
    if action == "added" and effects.started(name):
        yield "it has run before, and resumes at its checkpoint"
    elif action == "added":
        yield f"it begins at {at(effects.after, ('pipelines', name, 'start'))}"
    elif action == "removed":
        yield (f"its checkpoint stays, and its pin keeps the log until `tailrace log unpin {name}`")
