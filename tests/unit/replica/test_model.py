"""The replication protocol, explored completely within bounds, and what breaks without a rule.

`Bounds` of a run are few nodes, commits and takeovers; within them every order of steps, crashes
and lost messages is visited. A mutation switches one rule off, and the exploration has to find what
that breaks: a check that cannot fail proves nothing.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.model.cluster import Bounds, Rules
from tests.model.explore import PROGRESS, Exploration, explore
from tests.model.invariants import healed, invariants, quorum_can_win
from tests.model.replication import FAILURES, start, successors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.model.cluster import State
    from tests.model.replication import Step

TWO = Bounds(nodes=2, quorum=1, commits=1, takeovers=1)
THREE = Bounds(nodes=3, quorum=1, commits=1, takeovers=1)
COARSE = replace(THREE, takeovers=2, coarse=True)
"""Two takeovers of three nodes, which is what the rules about older terms are for."""

RETENTION = replace(THREE, commits=2, takeovers=0, retention=True)
"""A follower that is slower than the quorum loses its place."""

AS_FIRST_WRITTEN = Rules(newest_log=False, drop_late=False)
"""The first description of the protocol: the slot's position alone decides who may win."""


def run(
    bounds: Bounds, rules: Rules | None = None, *, progress: bool = True, failures: bool = True
) -> Exploration:
    """Explore. What fails without a failure is found sooner if none is tried."""
    rules = rules or Rules()
    conditions = invariants(bounds, rules)
    # After two takeovers at once, or resets, one node may be able to win until others caught up.
    if progress and (bounds.nodes == 2 or (bounds.takeovers == 1 and not bounds.retention)):
        conditions["quorum_can_win"] = partial(quorum_can_win, bounds=bounds)

    def steps(state: State) -> Iterator[Step]:
        every = successors(state, bounds, rules)
        return every if failures else (each for each in every if not each[0].startswith(FAILURES))

    goal = partial(healed, bounds=bounds) if progress else None
    found = explore(start(bounds), steps, conditions, goal=goal)
    print(bounds, found)
    return found


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(TWO, id="2 nodes"),
        pytest.param(replace(TWO, takeovers=2, window=1), id="2 nodes, 2 takeovers, in flight"),
        pytest.param(replace(TWO, commits=2, window=2), id="2 nodes, 2 commits, 2 in flight"),
        pytest.param(RETENTION, id="3 nodes, retention"),
        pytest.param(replace(TWO, commits=2, takeovers=2, coarse=True), id="2 nodes, 2 and 2"),
        pytest.param(THREE, id="3 nodes"),
        pytest.param(replace(THREE, quorum=2), id="3 nodes, quorum 2"),
    ],
)
def test_nothing_is_lost_and_the_system_continues(bounds: Bounds) -> None:
    found = run(bounds)
    assert not found.broken, found


@pytest.mark.long
@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(COARSE, id="3 nodes, 2 takeovers"),
        pytest.param(replace(COARSE, quorum=2), id="3 nodes, 2 takeovers, quorum 2"),
        pytest.param(replace(TWO, commits=2, takeovers=2, window=1), id="2 nodes, 2 and 2"),
        pytest.param(replace(TWO, takeovers=3), id="2 nodes, 3 takeovers"),
        pytest.param(replace(THREE, commits=2, coarse=True), id="3 nodes, 2 commits"),
        pytest.param(replace(THREE, window=1), id="3 nodes, in flight"),
        pytest.param(
            replace(RETENTION, takeovers=1, coarse=True), id="3 nodes, 1 takeover, retention"
        ),
        pytest.param(
            replace(TWO, commits=2, takeovers=2, retention=True, coarse=True),
            id="2 nodes, 2 takeovers, retention",
        ),
    ],
)
def test_nothing_is_lost_within_larger_bounds(bounds: Bounds) -> None:
    found = run(bounds)
    assert not found.broken, found


MUTATIONS = [
    ("confirm_quorum", TWO, Rules(), "quorum_held"),
    ("visible_quorum", TWO, Rules(), "quorum_held"),
    ("highest_source", replace(TWO, takeovers=2), Rules(), PROGRESS),
    ("second_check", THREE, Rules(), "winners_reach_all"),
    ("atomic_copy", TWO, Rules(), "one_winner"),
    ("copy_must_succeed", TWO, Rules(), "one_winner"),
    ("refuse_lower", THREE, Rules(), "quorum_holds"),
    ("remember_seen", THREE, Rules(), "not_diverged"),
    ("cut", TWO, Rules(), "same_logs"),
    ("compare_terms", replace(TWO, takeovers=2), Rules(), "quorum_held"),
    ("oldest_first", COARSE, Rules(), "one_winner"),
    # With late drops, the follower of the leader that drops would be a fourth node.
    ("drop_waits", COARSE, AS_FIRST_WRITTEN, "one_winner"),
    ("send_durable", TWO, Rules(), "not_diverged"),
    ("ack_durable", TWO, Rules(), "quorum_held"),
    ("drop_late", THREE, Rules(), "quorum_can_win"),
    ("newest_log", COARSE, Rules(), "quorum_holds"),
    ("newest_log_again", COARSE, Rules(), "quorum_holds"),
    ("confirm_alone", COARSE, Rules(), "quorum_holds"),
]
FAILURE_FREE = {"newest_log", "newest_log_again", "confirm_alone"}


@pytest.mark.parametrize(
    ("rule", "bounds", "rules", "broken"), [pytest.param(*each, id=each[0]) for each in MUTATIONS]
)
def test_each_rule_is_needed(rule: str, bounds: Bounds, rules: Rules, broken: str) -> None:
    # A rule is needed for one of the promises, or else for progress.
    progress = broken in (PROGRESS, "quorum_can_win")
    failures = rule not in FAILURE_FREE
    found = run(bounds, replace(rules, **{rule: False}), progress=progress, failures=failures)
    assert found.broken == broken, found


def test_the_check_before_the_copy_only_avoids_a_takeover_in_vain() -> None:
    """A candidate that cannot win would fence the leader; the second check prevents the loss."""
    found = run(replace(THREE, coarse=True), Rules(first_check=False))
    assert not found.broken, found


def test_every_rule_has_its_mutation() -> None:
    names = {each.name for each in fields(Rules)}
    assert {rule for rule, *_ in MUTATIONS} == names - {"first_check"}


def test_a_position_alone_does_not_decide_who_may_win() -> None:
    """An old leader wins with commits of its own term, and followers remove those of the quorum."""
    found = run(COARSE, AS_FIRST_WRITTEN, progress=False, failures=False)
    assert found.broken == "quorum_holds", found


def test_two_nodes_do_not_need_to_compare_terms_to_win() -> None:
    found = run(replace(TWO, takeovers=2, coarse=True), Rules(newest_log=False))
    assert not found.broken, found


def test_every_kind_of_step_happens() -> None:
    """A promise holds easily if nothing happens."""
    kinds = {
        *("receives commit", "confirms", "loses its session", "starts to stream", "FENCED"),
        *("removes", "sends", "receives entry", "receives ack", "acknowledges", "fsyncs"),
        *("continues", "cuts", "resets", "loses its connection", "crashes", "leads term"),
        *("lists", "copies e", "copies, refused", "checks", "and leads", "drops", "on e0"),
    }
    missing = set(kinds)
    for bounds in (THREE, replace(TWO, window=1), RETENTION):
        names: set[str] = set()

        def steps(state: State, bounds: Bounds = bounds, names: set[str] = names) -> Iterator[Step]:
            for step in successors(state, bounds, Rules()):
                names.add(step[0])
                yield step

        explore(start(bounds), steps, {})
        missing -= {kind for kind in missing if any(kind in name for name in names)}
    assert not missing


def test_a_goal_that_cannot_be_reached_is_found() -> None:
    """Without the second node's data there is no quorum, and no progress."""
    bounds = replace(TWO, commits=1)
    found = explore(
        start(bounds),
        lambda state: (
            step for step in successors(state, bounds, Rules()) if " sends " not in step[0]
        ),
        {},
        goal=partial(healed, bounds=bounds),
    )
    assert found.broken == PROGRESS
