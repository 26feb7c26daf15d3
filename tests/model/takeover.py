"""A takeover as a state machine: copy the slot of the highest term, check, end, drop, lead.

Each function yields the next step of a candidate. Between two steps anything may happen: a crash of
the candidate, the same steps by another one, progress of the old leader. So a step sees PostgreSQL
as it is now, and the candidate only remembers the term that it wants to win.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.model.cluster import (
    COPIED,
    IDLE,
    LEADER,
    LISTED,
    LOOKED,
    NONE,
    OWNED,
    Node,
    State,
    end_of,
    entry,
    fsynced,
    newest_term,
    put,
    term_of,
    visible,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.model.cluster import Bounds, Rules


def stand(
    state: State, at: int, node: Node, bounds: Bounds, rules: Rules
) -> Iterator[tuple[str, State]]:
    """List the slots: the source is the highest term that exists, whoever has created it."""
    source = state.highest if rules.highest_source else node.seen
    if source in (NONE, bounds.takeovers):
        return
    if rules.first_check and not may_win(state, source, node, rules):
        return
    candidate = node._replace(phase=LISTED, term=source + 1, follows=NONE, flight=(), acking=NONE)
    after = fsynced(state, at, candidate, len(node.log), bounds)
    yield f"candidate {at} lists e{source}={state.slots[source]}", after


def take_over(
    state: State, at: int, node: Node, bounds: Bounds, rules: Rules
) -> Iterator[tuple[str, State]]:
    """The next step of a candidate."""
    name = f"candidate {at} for term {node.term}"
    match node.phase:
        case phase if phase == LISTED and not rules.atomic_copy:
            looked = LOOKED if state.slots[node.term] == NONE else IDLE
            yield f"{name} looks for its slot", put(state, at, _to(node, looked))
        case phase if phase in (LISTED, LOOKED):
            yield _copy(state, at, node, name, rules)
        case phase if phase == COPIED:
            wins = not rules.second_check or may_win(state, node.term, node, _after_copy(rules))
            after = _to(node, OWNED)._replace(seen=node.term) if wins else _to(node, IDLE)
            yield f"{name} checks {state.slots[node.term]}", put(state, at, after)
        case _:
            # That the session ends before is the loss of a session, which is a step of its leader.
            led = put(_ended(state, node.term - 1, bounds), at, node)
            yield f"{name} ends the session and leads", lead(led, at, node, node.term, bounds)


def lead(state: State, at: int, node: Node, term: int, bounds: Bounds) -> State:
    """The node leads a term, whose first segment it begins with an entry."""
    log = node.log
    if newest_term(log) < term:
        log = (*log, entry(end_of(log), term))
    led = node._replace(phase=LEADER, term=term, won=term, log=log, streams=bounds.coarse)
    return written(state, at, led, bounds)


def may_win(state: State, term: int, node: Node, rules: Rules) -> bool:
    """Whether the log has what the slot has confirmed, and was not left behind.

    The lowest slot is of the last term that confirmed anything, or of one before.
    """
    position = state.slots[term]
    if position == NONE or position > end_of(node.log):
        return False
    lowest = next(term for term, each in enumerate(state.slots) if each != NONE)
    return newest_term(node.log) >= lowest or not rules.newest_log


def _after_copy(rules: Rules) -> Rules:
    """The rules of the second check."""
    return replace(rules, newest_log=rules.newest_log and rules.newest_log_again)


def _copy(state: State, at: int, node: Node, name: str, rules: Rules) -> tuple[str, State]:
    source, target = state.slots[node.term - 1], state.slots[node.term]
    exists = target != NONE and rules.atomic_copy
    if source == NONE or (exists and rules.copy_must_succeed):
        return f"{name} copies, refused", put(state, at, _to(node, IDLE))
    wins = (*state.wins[: node.term], state.wins[node.term] + 1, *state.wins[node.term + 1 :])
    slots = state.slots if exists else _slot(state, node.term, source)
    state = put(state, at, _to(node, COPIED))._replace(slots=slots, wins=wins)
    return f"{name} copies e{node.term - 1}={source}", state


def drop(
    state: State, leader: Node, bounds: Bounds, rules: Rules, name: str
) -> Iterator[tuple[str, State]]:
    """Drop one slot of an older term, or end the session that streams from it."""
    older = [term for term in range(leader.term) if state.slots[term] != NONE]
    if not rules.drop_waits:
        used = {each.term for each in state.nodes if each.streams}
        older = [term for term in older if term not in used]
    if not older:
        return
    begin = sum(term_of(each) < leader.term for each in leader.log)
    if rules.drop_late and visible(state, leader, bounds) <= begin:
        return
    term = older[0 if rules.oldest_first else -1]
    if not bounds.coarse and any(each.streams and each.term == term for each in state.nodes):
        yield f"{name} ends the session on e{term}", _ended(state, term, bounds)
    else:
        yield f"{name} drops e{term}", state._replace(slots=_slot(state, term, NONE))


def _ended(state: State, term: int, bounds: Bounds) -> State:
    """No session streams from the slot of the term."""
    if bounds.coarse:
        return state
    return state._replace(
        nodes=tuple(
            each._replace(streams=False) if each.streams and each.term == term else each
            for each in state.nodes
        )
    )


def _to(node: Node, phase: int) -> Node:
    return node._replace(phase=phase, term=0 if phase == IDLE else node.term)


def _slot(state: State, term: int, position: int) -> tuple[int, ...]:
    return (*state.slots[:term], position, *state.slots[term + 1 :])
