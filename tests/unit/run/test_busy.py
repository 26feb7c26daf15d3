"""CPU time of processes with descendants that come and go."""

from __future__ import annotations

import os

import pytest

from tailrace.run.busy import LOOK_S, BusyMeter, cpu_of

CPU: dict[int, dict[int, float]] = {}


@pytest.fixture
def meter() -> BusyMeter:
    CPU.clear()
    return BusyMeter(lambda pid: dict(CPU.get(pid, {})))


def test_what_a_process_and_its_descendants_took(meter: BusyMeter) -> None:
    """GIVEN a worker that ends and another one that starts THEN their time counts once."""
    CPU[7] = {7: 1.0, 8: 4.0}
    meter.look({"pipelines": 7}, 0.0)
    assert (meter.cpu_s("pipelines"), meter.busy("pipelines")) == (5.0, None)
    CPU[7] = {7: 2.0, 9: 0.5}
    meter.look({"pipelines": 7}, LOOK_S)
    assert (meter.cpu_s("pipelines"), meter.busy("pipelines")) == (6.5, 1.5 / LOOK_S)


def test_the_time_grows_over_a_restart(meter: BusyMeter) -> None:
    """Its total never decreases; the share begins anew."""
    CPU.update({7: {7: 5.0}, 8: {8: 0.5}})
    meter.look({"capture": 7}, 0.0)
    meter.look({"capture": 8}, LOOK_S)
    assert (meter.cpu_s("capture"), meter.busy("capture")) == (5.5, None)
    meter.look({"capture": None}, 2 * LOOK_S)
    assert (meter.cpu_s("capture"), meter.busy("capture")) == (5.5, None)


def test_it_looks_every_few_seconds(meter: BusyMeter) -> None:
    CPU[7] = {7: 1.0}
    meter.look({"capture": 7}, 0.0)
    CPU[7] = {7: 2.0}
    meter.look({"capture": 7}, LOOK_S - 0.1)
    assert meter.cpu_s("capture") == 1.0


def test_an_unknown_process(meter: BusyMeter) -> None:
    meter.look({"capture": 7}, 0.0)
    assert (meter.cpu_s("capture"), meter.busy("serve")) == (None, None)


def test_the_kernel_says_what_this_process_took() -> None:
    before = os.times()
    found = cpu_of(os.getpid())[os.getpid()]
    after = os.times()
    slack = 2 / os.sysconf("SC_CLK_TCK")
    assert before.user + before.system - slack <= found <= after.user + after.system + slack
    assert cpu_of(2**22 + 1) == {}
