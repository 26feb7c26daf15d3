"""The values of the model: what PostgreSQL and the nodes hold, and the bounds and rules of a run.

A commit is a number from 1. An entry of a log is a commit and the term that wrote it, as one
integer, because millions of them are compared and hashed. No value names another node: a
connection names the term of its leader, and a slot is streamed by the node that says so. A state
is therefore the same for every order of its nodes, and the explorer sorts them: the symmetry of the
nodes costs one sort and is used completely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

IDLE, LISTED, LOOKED, COPIED, OWNED, LEADER = range(6)
"""Phases of a node: a follower or stopped; the steps of a takeover; the leader of `term`."""
PHASES = ("idle", "listed", "looked", "copied", "owned", "leader")

NONE = -1
_TERMS = 16


def entry(commit: int, term: int) -> int:
    """An entry of a log as an integer."""
    return commit * _TERMS + term


def commit_of(each: int) -> int:
    """The commit of an entry."""
    return each // _TERMS


def term_of(each: int) -> int:
    """The term that wrote an entry."""
    return each % _TERMS


def end_of(log: tuple[int, ...]) -> int:
    """The last commit of a log."""
    return log[-1] // _TERMS if log else 0


def newest_term(log: tuple[int, ...]) -> int:
    """The term of the last entry of a log."""
    return log[-1] % _TERMS if log else 0


class Node(NamedTuple):
    """A machine: its log, what it remembers durably, and what it does at the moment."""

    phase: int
    term: int
    """Of the leader, or the one that the candidate tries to win; 0 if it is neither."""
    log: tuple[int, ...]
    durable: int
    """So many entries are fsynced."""
    oldest: int
    """So many entries are removed by retention. They stay in `log`, for comparisons."""
    seen: int
    """The highest term it knows of; durable."""
    won: int
    """The last term it began to lead; durable."""
    streams: bool
    """It has a session that streams from the slot of its term."""
    follows: int
    """The term of the leader that it is connected to."""
    flight: tuple[int, ...]
    """Entries on their way to it. They may arrive after their sender has crashed."""
    acking: int
    """A mark on its way to the leader of `follows`."""
    acks: tuple[int, ...]
    """By term: the newest mark of this node that the leader of the term has received."""

    @property
    def commits(self) -> int:
        """So many commits are on this machine's disk."""
        return end_of(self.log[: self.durable])


class State(NamedTuple):
    """Everything at one moment."""

    slots: tuple[int, ...]
    """By term: the slot's `confirmed_flush_lsn` as a number of commits; `NONE`: no such slot."""
    wins: tuple[int, ...]
    """By term: how many candidates believe that they have created its slot."""
    nodes: tuple[Node, ...]
    reached: int
    """So many commits have been durable on a quorum and a leader at some moment."""
    retired: int
    """So many commits the retention of some leader has removed: pipelines have delivered them."""
    diverged: bool
    """A leader has refused a follower with DIVERGED."""

    @property
    def highest(self) -> int:
        """The highest term whose slot exists."""
        return max(
            (term for term, position in enumerate(self.slots) if position != NONE), default=NONE
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The size of a run. Within it, everything that can happen is explored."""

    nodes: int
    quorum: int
    """So many followers must have a commit before it is acknowledged."""
    commits: int
    takeovers: int
    """The highest term."""
    window: int = 0
    """Entries in flight per connection. 0: messages arrive in the step that sends them."""
    retention: bool = False
    """The leader removes the start of its log."""
    coarse: bool = False
    """Entries are fsynced as they are written, and sessions start and end unseen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of the protocol; a mutation breaks one of them."""

    confirm_quorum: bool = True
    """Capture acknowledges to PostgreSQL what a quorum has, not all that it has itself."""
    visible_quorum: bool = True
    """Readers see what a quorum has."""
    highest_source: bool = True
    """A candidate copies the slot of the highest term that exists, whoever has created it."""
    first_check: bool = True
    """A candidate compares its log with the slot before it copies it."""
    second_check: bool = True
    """A candidate compares its log with the copy before it uses it."""
    atomic_copy: bool = True
    """Copying a slot fails if the name exists at that moment."""
    copy_must_succeed: bool = True
    """A candidate whose copy fails because the name exists has not won."""
    refuse_lower: bool = True
    """A follower refuses leaders of lower terms than it has seen."""
    remember_seen: bool = True
    """The highest term seen is durable by itself, not only as the last entry of the log."""
    cut: bool = True
    """A follower removes what is not in the leader's log."""
    compare_terms: bool = True
    """The leader compares the terms of both logs, not only the follower's last term and mark."""
    oldest_first: bool = True
    """Slots of older terms are dropped in ascending order."""
    drop_waits: bool = True
    """A slot that is in use stops the dropping until it is dropped."""
    send_durable: bool = True
    """The leader sends what it has fsynced."""
    ack_durable: bool = True
    """A follower acknowledges what it has fsynced."""
    newest_log: bool = True
    """A candidate's log ends in the lowest term whose slot exists, or in a later one."""
    newest_log_again: bool = True
    """The check after the copy repeats that, and compares not only positions."""
    drop_late: bool = True
    """A leader drops the slots of older terms when a quorum has an entry of its own term."""
    confirm_alone: bool = True
    """A leader confirms when it has dropped the slots of older terms."""


def put(state: State, at: int, node: Node) -> State:
    """The state with another value of one node."""
    slots, wins, nodes, reached, retired, diverged = state
    return State(slots, wins, (*nodes[:at], node, *nodes[at + 1 :]), reached, retired, diverged)


def fsynced(state: State, at: int, node: Node, entries: int, bounds: Bounds) -> State:
    """The node has fsynced so many entries."""
    if entries == node.durable:
        return put(state, at, node)
    state = put(state, at, node._replace(durable=entries))
    held = sorted((each.commits for each in state.nodes), reverse=True)[bounds.quorum]
    return state._replace(reached=held) if held > state.reached else state


def written(state: State, at: int, node: Node, bounds: Bounds) -> State:
    """The node has written to its log, which it fsyncs in a step of its own."""
    return (
        fsynced(state, at, node, len(node.log), bounds) if bounds.coarse else put(state, at, node)
    )


def visible(state: State, leader: Node, bounds: Bounds, *, quorum: bool = True) -> int:
    """In entries: the smaller of the leader's own mark and the N-th best of its followers."""
    if not quorum:
        return leader.durable
    marks = sorted((node.acks[leader.term] for node in state.nodes if node != leader), reverse=True)
    return min(leader.durable, marks[bounds.quorum - 1])


def render(state: State) -> str:
    """A state as lines for people."""
    slots = ", ".join(f"e{term}={at}" for term, at in enumerate(state.slots) if at != NONE)
    lines = [f"    slots {slots or '-'}"]
    for index, node in enumerate(state.nodes):
        entries = [f"{commit_of(each)}@{term_of(each)}" for each in node.log]
        entries.insert(node.durable, "|")
        more = [f"seen {node.seen}"]
        if node.phase != IDLE:
            more.append(f"{PHASES[node.phase]} of {node.term}")
        if node.streams:
            more.append("streams")
        if node.follows != NONE:
            more.append(f"follows {node.follows}")
        if node.flight:
            more.append("in flight " + " ".join(str(commit_of(each)) for each in node.flight))
        lines.append(f"    node {index}: [{' '.join(entries)}] {', '.join(more)}")
    return "\n".join(lines)
