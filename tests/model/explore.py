"""Exhaustive exploration, breadth first: every state that can be reached, each once.

Breadth first, so that a counterexample is a shortest one. States that differ only in the order of
their nodes are one: no value in a state names a node, so sorting the nodes gives a representative.
Node 1 of a state may therefore be node 0 of the next one; a trace is walked again without sorting,
and keeps the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from tests.model.cluster import State, render
from tests.model.replication import FAILURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Successors: TypeAlias = "Callable[[State], Iterable[tuple[str, State]]]"
Condition: TypeAlias = "Callable[[State], bool]"

PROGRESS = "progress"


@dataclass(slots=True)
class Exploration:
    """What was found."""

    states: int = 0
    steps: int = 0
    broken: str = ""
    """The condition that does not hold; empty: all hold."""
    trace: list[tuple[str, State]] = field(default_factory=list)
    """The steps to the first state in which it does not."""

    def __str__(self) -> str:
        summary = f"{self.states} states, {self.steps} steps"
        if not self.broken:
            return summary
        steps = [f"{at:3} {name}\n{render(state)}" for at, (name, state) in enumerate(self.trace)]
        return "\n".join([f"{self.broken} does not hold ({summary})", *steps])


def explore(
    start: State,
    successors: Successors,
    invariants: Mapping[str, Condition],
    *,
    goal: Condition | None = None,
    limit: int = 5_000_000,
) -> Exploration:
    """Visit every state, until one breaks an invariant.

    With a goal: then look for a state from which no step but failures leads to the goal.
    """
    found = Exploration()
    states = [representative(start)]
    numbers = {states[0]: 0}
    parents = [0]
    before: list[list[int]] = [[]]
    while found.states < len(states):
        number = found.states
        state = states[number]
        found.states += 1
        for name, holds in invariants.items():
            if not holds(state):
                found.broken = name
                found.trace = _trace(start, number, states, parents, successors)
                return found
        for name, after in successors(state):
            found.steps += 1
            seen = representative(after)
            target = numbers.setdefault(seen, len(states))
            if target == len(states):
                states.append(seen)
                parents.append(number)
                before.append([])
            if goal and not name.startswith(FAILURES):
                before[target].append(number)
        if len(states) > limit:
            raise RuntimeError(f"more than {limit} states")
    stuck = _stuck(states, before, goal) if goal else None
    if stuck is not None:
        found.broken = PROGRESS
        found.trace = _trace(start, stuck, states, parents, successors)
    return found


def representative(state: State) -> State:
    """The same for every order of the nodes."""
    slots, wins, nodes, reached, retired, diverged = state
    return State(slots, wins, tuple(sorted(nodes)), reached, retired, diverged)


def _stuck(states: list[State], before: list[list[int]], goal: Condition) -> int | None:
    """The first state from which the goal cannot be reached."""
    waiting = [number for number, state in enumerate(states) if goal(state)]
    reaches = set(waiting)
    while waiting:
        for number in before[waiting.pop()]:
            if number not in reaches:
                reaches.add(number)
                waiting.append(number)
    return next((number for number in range(len(states)) if number not in reaches), None)


def _trace(
    start: State, end: int, states: list[State], parents: list[int], successors: Successors
) -> list[tuple[str, State]]:
    path = [end]
    while path[-1]:
        path.append(parents[path[-1]])
    state, trace = start, [("start", start)]
    for number in reversed(path[:-1]):
        name, state = next(
            step for step in successors(state) if representative(step[1]) == states[number]
        )
        trace.append((name, state))
    return trace
