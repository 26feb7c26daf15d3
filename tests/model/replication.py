"""The replication protocol as a state machine: what each node may do next, in any order.

It follows docs/formats/replication.md. `successors` yields every step that is possible in a state,
with its name. There is no clock: a step may wait forever, and a takeover may start at any time,
whatever the timeouts say.

| in the protocol               | in the model                                                     |
|-------------------------------|------------------------------------------------------------------|
| a node that is down, paused,  | its steps are not taken                                          |
| or cannot reach PostgreSQL    |                                                                  |
| a crash                       | some of what is not fsynced survives, or nothing; of the rest    |
|                               | the highest term seen and the last one won                       |
| a session that ends           | `loses its session`; a leader may start again while its slot     |
|                               | exists, because its list of the slots may be old                 |
| a copy whose answer is lost   | a copy and a crash                                               |
| HELLO to READY                | one step: a follower has one connection, and a crash in between  |
|                               | is before or after the cut                                       |
| DATA, ACK                     | in flight, in order, at most `window` entries. Data may arrive   |
|                               | after its sender has crashed, or be lost with the connection.    |
|                               | Window 0: they arrive as they are sent. The states are the same, |
|                               | only earlier: nothing else reads what they change                |
| confirm, to PostgreSQL        | arrives as it is sent, for the same reason                       |
| pipelines                     | they may deliver what is visible at any time, so the visible     |
|                               | mark of every leader is checked, also of one that is deposed     |
| commits of PostgreSQL         | all exist from the start; a leader receives them when it likes   |

`Bounds.coarse` joins more steps, for larger bounds. What is not fsynced is as good as not written,
unless it is sent or acknowledged, and the finer runs prove that it is neither. A leader without a
session is a leader that waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from tests.model.cluster import (
    IDLE,
    LEADER,
    NONE,
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
from tests.model.takeover import drop, lead, stand, take_over

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.model.cluster import Bounds, Rules

Step: TypeAlias = "tuple[str, State]"

FAILURES = ("crashes", "loses")
"""The first words of the steps that a healed system does not take."""


def start(bounds: Bounds) -> State:
    """A leader of term 0 and followers without a log."""
    nothing = (0,) * (bounds.takeovers + 1)
    idle = Node(IDLE, 0, (), 0, 0, 0, NONE, False, NONE, (), NONE, nothing)
    leader = idle._replace(phase=LEADER, won=0, streams=True)
    slots = (0, *(NONE,) * bounds.takeovers)
    wins = (1, *(0,) * bounds.takeovers)
    return State(slots, wins, (leader, *(idle,) * (bounds.nodes - 1)), 0, 0, False)


def successors(state: State, bounds: Bounds, rules: Rules) -> Iterator[Step]:
    """Every step that some node, or the network, may take."""
    for at, node in enumerate(state.nodes):
        if node.phase == LEADER:
            yield from _lead(state, at, node, bounds, rules)
            yield from _replicate(state, at, node, bounds, rules)
        elif node.phase == IDLE:
            yield from _follow(state, at, node, bounds, rules)
            yield from stand(state, at, node, bounds, rules)
        else:
            yield from take_over(state, at, node, bounds, rules)
        if node.durable < len(node.log) and node.phase in (IDLE, LEADER):
            yield f"node {at} fsyncs", fsynced(state, at, node, len(node.log), bounds)
        yield from _crash(state, at, node, bounds, rules)


def _lead(state: State, at: int, node: Node, bounds: Bounds, rules: Rules) -> Iterator[Step]:
    """Capture: a session with PostgreSQL, its commits, and what is acknowledged."""
    confirmed = state.slots[node.term]
    who = f"leader {at} of term {node.term}"
    if node.streams and confirmed != NONE:
        # PostgreSQL sends what follows the newer of the position asked for and the confirmed one.
        following = max(confirmed, end_of(node.log)) + 1
        if following <= bounds.commits:
            log = (*node.log, entry(following, node.term))
            after = written(state, at, node._replace(log=log), bounds)
            yield f"{who} receives commit {following}", after
        mark = end_of(node.log[: visible(state, node, bounds, quorum=rules.confirm_quorum)])
        alone = all(position == NONE for position in state.slots[: node.term])
        if mark > confirmed and (alone or not rules.confirm_alone):
            slots = (*state.slots[: node.term], mark, *state.slots[node.term + 1 :])
            yield f"{who} confirms {mark}", state._replace(slots=slots)
        if not bounds.coarse:
            yield f"loses its session: {who}", put(state, at, node._replace(streams=False))
    elif confirmed != NONE and not any(
        each.streams and each.term == node.term for each in state.nodes
    ):
        yield f"{who} starts to stream", put(state, at, node._replace(streams=True))
    if state.highest > node.term or any(each.seen > node.term for each in state.nodes):
        yield f"{who} stops, FENCED", _stop(state, at, node, len(node.log), bounds)
    if bounds.retention and node.oldest < visible(state, node, bounds):
        trimmed = node._replace(oldest=node.oldest + 1)
        after = put(state, at, trimmed)
        after = after._replace(retired=max(state.retired, end_of(node.log[: trimmed.oldest])))
        yield f"{who} removes entry {trimmed.oldest}", after
    yield from drop(state, node, bounds, rules, who)


def _replicate(state: State, at: int, leader: Node, bounds: Bounds, rules: Rules) -> Iterator[Step]:
    """The leader's side of its connections."""
    ready = leader.durable if rules.send_durable else len(leader.log)
    for to, node in enumerate(state.nodes):
        if to == at or node.phase != IDLE:
            continue
        name = f"leader {at} of term {leader.term}"
        if node.follows != leader.term:
            if node.seen <= leader.term or not rules.refuse_lower:
                yield connect(state, name, leader, to, rules)
            continue
        if node.oldest < min(leader.oldest, node.durable):
            yield f"{name} removes at {to}", put(state, to, node._replace(oldest=node.oldest + 1))
        sent = len(node.log) + len(node.flight)
        if sent < ready and len(node.flight) < max(bounds.window, 1):
            # A follower without a log begins at the leader's oldest segment.
            following = leader.log[sent : max(sent + 1, leader.oldest)]
            if bounds.window:
                after = put(state, to, node._replace(flight=node.flight + following))
            else:
                oldest = leader.oldest if sent < leader.oldest else node.oldest
                log = node.log + following
                after = written(state, to, node._replace(log=log, oldest=oldest), bounds)
            yield f"{name} sends entry {sent + 1} to {to}", after
        if node.acking != NONE:
            yield f"{name} receives ack {node.acking} of {to}", _acked(state, to, node.acking)


def _acked(state: State, at: int, mark: int) -> State:
    node = state.nodes[at]
    acks = (*node.acks[: node.follows], mark, *node.acks[node.follows + 1 :])
    return put(state, at, node._replace(acking=NONE, acks=acks))


def connect(state: State, name: str, leader: Node, to: int, rules: Rules) -> Step:
    """HELLO to READY: the leader decides where the follower continues."""
    node = state.nodes[to]
    # What is not fsynced comes again.
    held = node.log[: node.durable]
    common = _common(leader.log, held, rules)
    action = "continues"
    if common < len(held) and term_of(held[common]) == leader.term:
        return f"{name} refuses {to}, DIVERGED", state._replace(diverged=True)
    if held and common < max(leader.oldest, node.oldest):
        action, held = "resets", ()
    elif common < len(held) and rules.cut:
        action, held = "cuts", held[:common]
    node = node._replace(
        log=held,
        durable=len(held),
        oldest=min(node.oldest, len(held)),
        seen=max(node.seen, leader.term),
        follows=leader.term,
        flight=(),
        acking=NONE,
    )
    return f"{name} {action} {to} at {len(held)}", put(state, to, node)


def _common(log: tuple[int, ...], held: tuple[int, ...], rules: Rules) -> int:
    """So many entries are the same in the leader's log and in what the follower has.

    The follower reports the terms of its log and where each ends. One node writes a term, so the
    logs agree up to where the newest term that both have ends in one of them. Its last term alone
    does not suffice: if the leader's log has nothing of it, an older term that the leader has may
    end later there than in the follower's log.
    """
    terms = {term_of(each) for each in held}
    if rules.compare_terms:
        newest = max(terms & {term_of(each) for each in log}, default=NONE)
    else:
        newest = max(terms, default=NONE)
    return min(
        sum(term_of(each) <= newest for each in log),
        sum(term_of(each) <= newest for each in held),
    )


def _follow(state: State, at: int, node: Node, bounds: Bounds, rules: Rules) -> Iterator[Step]:
    """A follower's side of its connection, and a leader that comes back."""
    if node.flight:
        log = (*node.log, node.flight[0])
        arrived = node._replace(log=log, flight=node.flight[1:])
        yield f"node {at} receives entry {len(log)}", written(state, at, arrived, bounds)
    if node.follows != NONE:
        mark = node.durable if rules.ack_durable else len(node.log)
        if mark > max(node.acks[node.follows], node.acking):
            name = f"node {at} acknowledges {mark}"
            if bounds.window:
                yield name, put(state, at, node._replace(acking=mark))
            else:
                yield name, _acked(state, at, mark)
        broken = node._replace(follows=NONE, flight=(), acking=NONE)
        yield f"loses its connection: node {at}", put(state, at, broken)
    if node.won == node.seen and state.slots[node.won] != NONE:
        ready = node._replace(follows=NONE, flight=(), acking=NONE)
        yield f"node {at} leads term {node.won} again", lead(state, at, ready, node.won, bounds)


def _crash(state: State, at: int, node: Node, bounds: Bounds, rules: Rules) -> Iterator[Step]:
    """A crash and a restart; of what is not fsynced, some may survive."""
    for left in range(node.durable, len(node.log) + 1):
        crashed = node
        if not rules.remember_seen:
            crashed = node._replace(seen=max(newest_term(node.log[:left]), node.won))
        elif node.phase == IDLE and node.follows == NONE and node.durable == len(node.log):
            return  # It has nothing to lose.
        yield f"crashes with {left} left: node {at}", _stop(state, at, crashed, left, bounds)


def _stop(state: State, at: int, node: Node, left: int, bounds: Bounds) -> State:
    """The node is idle, with a log that recovery has fsynced; its followers lose their leader."""
    stopped = node._replace(
        phase=IDLE,
        term=0,
        log=node.log[:left],
        streams=False,
        follows=NONE,
        flight=(),
        acking=NONE,
    )
    if node.phase == LEADER:
        nodes = tuple(_without_leader(each, node.term) for each in state.nodes)
        state = state._replace(nodes=nodes)
        stopped = _without_leader(stopped, node.term)
    return fsynced(state, at, stopped, left, bounds)


def _without_leader(node: Node, term: int) -> Node:
    """What the leader of the term knew is lost with it; what it has sent may still arrive."""
    acks = (*node.acks[:term], 0, *node.acks[term + 1 :])
    if node.follows == term:
        return node._replace(acks=acks, follows=NONE, acking=NONE)
    return node if acks == node.acks else node._replace(acks=acks)
