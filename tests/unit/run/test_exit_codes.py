from __future__ import annotations

import signal

import pytest

from tailrace.run.exit_codes import FINAL, exit_name


def test_final_codes_are_those_that_a_restart_cannot_fix() -> None:
    assert {2, 3, 10, 11, 12, 14, 15, 16, 17, 22, 32, 33} <= set(FINAL)
    assert not {0, 1, 13, 20, 21, 30, 31} & set(FINAL)


@pytest.mark.parametrize(
    ("code", "name"),
    [(0, "0"), (1, "1"), (13, "13 DISK_FULL"), (20, "20 UNREACHABLE"), (-15, "SIGTERM")],
)
def test_codes_have_names(code: int, name: str) -> None:
    assert exit_name(code) == name


def test_a_signal_without_a_name() -> None:
    assert exit_name(-signal.SIGRTMIN - 1) == f"signal {signal.SIGRTMIN + 1}"
