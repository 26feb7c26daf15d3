from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.capture import reconcile
from tailrace.capture.replication import System
from tailrace.errors import (
    DivergedError,
    GapError,
    PostgresRefusedError,
    SlotLostError,
    TailraceError,
)
from tailrace.log.format.mark import Mark
from tailrace.position import Lsn, Position
from tailrace.postgres.slot import SlotState
from tailrace.wire.pgtime import PgTime

SYSTEM = System(identifier="71", timeline=2, flushed=Lsn(900), database="shop", now=PgTime(0))
SLOT = SlotState(
    name="s",
    plugin="pgoutput",
    slot_type="logical",
    database="shop",
    temporary=False,
    active_pid=None,
    restart_lsn=Lsn(1),
    confirmed_flush_lsn=Lsn(500),
    wal_status="reserved",
    safe_wal_bytes=None,
    kept_wal_bytes=None,
)
WANTED = reconcile.identity(SYSTEM, slot="s", publication="p")
HISTORY = "1\t0/258\tno recovery target specified\n"


def mark(end: int, last: int = 1) -> Mark:
    return Mark(
        sequence=1, offset=1, position=Position(Lsn(last), 0), end_lsn=Lsn(end), time=0, epoch=1
    )


def check_history(
    end: int = 500,
    timeline: int = 2,
    history: str = HISTORY,
    last: int = 1,
) -> Lsn:
    return reconcile.check_history(
        mark(end, last),
        replace(WANTED, timeline=timeline),
        WANTED,
        system=SYSTEM,
        history=lambda _: history,
    )


def test_good_slot_gives_its_position() -> None:
    assert reconcile.check_slot("s", SLOT, SYSTEM, log_exists=True) == 500


@pytest.mark.parametrize(
    ("slot", "log_exists", "error"),
    [
        (None, True, SlotLostError),
        (None, False, PostgresRefusedError),
        (replace(SLOT, plugin="wal2json"), True, PostgresRefusedError),
        (replace(SLOT, database="other"), True, PostgresRefusedError),
        (replace(SLOT, wal_status="lost"), True, SlotLostError),
        (replace(SLOT, invalidation_reason="idle_timeout"), True, SlotLostError),
        (replace(SLOT, confirmed_flush_lsn=None), True, SlotLostError),
    ],
)
def test_bad_slot(slot: SlotState | None, log_exists: bool, error: type[TailraceError]) -> None:
    with pytest.raises(error):
        reconcile.check_slot("s", slot, SYSTEM, log_exists=log_exists)


@pytest.mark.parametrize("confirmed", [0, 499, 500])
def test_slot_at_or_before_the_end_of_the_log_is_accepted(confirmed: int) -> None:
    reconcile.check_gap("s", Lsn(confirmed), Lsn(500))


def test_slot_ahead_of_the_log_is_a_gap() -> None:
    with pytest.raises(GapError, match="0/1F5"):
        reconcile.check_gap("s", Lsn(501), Lsn(500))


def test_log_ahead_of_the_server_has_diverged() -> None:
    check_history(end=900)
    with pytest.raises(DivergedError, match="lost changes"):
        check_history(end=901)


@pytest.mark.parametrize("change", [{"system_identifier": "72"}, {"database": "other"}])
def test_log_of_another_source_has_diverged(change: dict[str, str]) -> None:
    with pytest.raises(DivergedError):
        reconcile.check_history(
            mark(500),
            replace(WANTED, **change),  # type: ignore[arg-type]
            WANTED,
            system=SYSTEM,
            history=lambda _: "",
        )


def test_failover_before_the_log_s_end_has_diverged() -> None:
    assert check_history(end=0x258, timeline=1) == 0x258
    assert check_history(end=0x257, timeline=1) == 0x257
    # WAL after the switch, without a change: the log continues where the new timeline begins.
    assert check_history(end=0x300, timeline=1, last=0x257) == 0x258
    with pytest.raises(DivergedError, match="never received"):
        check_history(end=0x300, timeline=1, last=0x258)


def test_timelines_that_do_not_descend_have_diverged() -> None:
    with pytest.raises(DivergedError, match="older"):
        check_history(timeline=3)
    with pytest.raises(DivergedError, match="descend"):
        check_history(timeline=1, history="")
