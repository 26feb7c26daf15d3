"""What the protocol promises, as conditions on a single state.

| promise                          | condition                                                     |
|----------------------------------|---------------------------------------------------------------|
| one leader per term              | `one_winner`                                                  |
| acknowledged implies on a quorum | `quorum_held`: a commit has been on N+1 machines before any   |
|                                  | slot confirms it and before readers see it. `quorum_holds`:   |
|                                  | what the newest slot has confirmed is on N+1 machines in each |
|                                  | later state. Slots of older terms do not matter there: what a |
|                                  | deposed leader confirms, the newest slot still has            |
| no divergence                    | `same_logs`, `no_gaps`, `not_diverged`                        |
| what was delivered stays         | `winners_reach_all`: a winner's log and its slot together     |
|                                  | have all commits; with `no_gaps`, in their order              |
| the system continues             | `quorum_can_win`; `healed` can be reached without failures    |
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tests.model.cluster import (
    LEADER,
    LISTED,
    NONE,
    OWNED,
    Rules,
    State,
    commit_of,
    end_of,
    term_of,
    visible,
)
from tests.model.takeover import may_win

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.model.cluster import Bounds


def one_winner(state: State) -> bool:
    """A term is won at most once, and has at most one leader."""
    leaders = [node.term for node in state.nodes if node.phase == LEADER]
    return max(state.wins) <= 1 and len(set(leaders)) == len(leaders)


def same_logs(state: State) -> bool:
    """Logs that have an entry of the same commit and term agree up to it."""
    logs = [node.log for node in state.nodes]
    for at, log in enumerate(logs):
        for other in logs[at + 1 :]:
            if log != other and not _agree(log, other):
                return False
    return True


def _agree(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    common = max(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False), 1) if a == b), default=0
    )
    return one[:common] == other[:common]


def no_gaps(state: State) -> bool:
    """A log has the commits of PostgreSQL in their order, from the first, and none twice."""
    return all(_in_order(node.log) for node in state.nodes)


def _in_order(log: tuple[int, ...]) -> bool:
    """Each entry has the next commit, or it begins a term."""
    return all(
        commit_of(each) == commit_of(before) + 1
        if term_of(each) == term_of(before)
        else term_of(each) > term_of(before) and commit_of(each) == commit_of(before)
        for before, each in pairwise((0, *log))
    )


def quorum_holds(state: State, bounds: Bounds) -> bool:
    """What the newest slot has confirmed is on the disks of N+1 machines, or no longer needed."""
    confirmed = state.slots[state.highest]
    holders = sum(node.commits >= confirmed for node in state.nodes)
    return holders > bounds.quorum or confirmed <= state.retired


def quorum_can_win(state: State, bounds: Bounds) -> bool:
    """N+1 machines could win the next term, so that any N may fail."""
    term = state.highest
    durable = (node._replace(log=node.log[: node.durable]) for node in state.nodes)
    return sum(may_win(state, term, node, Rules()) for node in durable) > bounds.quorum


def quorum_held(state: State, bounds: Bounds, rules: Rules) -> bool:
    """What any slot has confirmed, and what any leader shows, has been on N+1 machines."""
    return max(state.slots) <= state.reached and all(
        end_of(node.log[: visible(state, node, bounds, quorum=rules.visible_quorum)])
        <= state.reached
        for node in state.nodes
        if node.phase == LEADER
    )


def winners_reach_all(state: State) -> bool:
    """Each commit is in a winner's log, or its slot still has it."""
    return state.highest != NONE and all(
        end_of(node.log) >= state.slots[node.term]
        for node in state.nodes
        if node.phase >= OWNED and state.slots[node.term] != NONE
    )


def not_diverged(state: State) -> bool:
    """No leader refuses a follower with DIVERGED: no disk is lost here."""
    return not state.diverged


def invariants(bounds: Bounds, rules: Rules) -> dict[str, Callable[[State], bool]]:
    """All of them by name."""
    return {
        "one_winner": one_winner,
        "no_gaps": no_gaps,
        "winners_reach_all": winners_reach_all,
        "quorum_held": lambda state: quorum_held(state, bounds, rules),
        "quorum_holds": lambda state: quorum_holds(state, bounds),
        "same_logs": same_logs,
        "not_diverged": not_diverged,
    }


def healed(state: State, bounds: Bounds) -> bool:
    """The leader of the highest term has all commits, and so has its quorum.

    At the last term of the bounds also: a slot without an owner that some node could copy.
    """
    term = state.highest
    if any(node.phase == LEADER and node.term == term for node in state.nodes):
        return state.slots[term] == bounds.commits
    owned = any(
        node.won == term or (node.phase > LISTED and node.term == term) for node in state.nodes
    )
    if term < bounds.takeovers or owned:
        return False
    return any(may_win(state, term, node, Rules()) for node in state.nodes)
