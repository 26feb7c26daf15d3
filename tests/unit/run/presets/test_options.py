"""The options of the presets: durations in Go's notation, log levels, the data folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from tailrace.run.presets.options import BridgeOptions, CreekOptions, duration_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("10s", 10),
        ("1h30m", 5400),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("1.s", 1),
        ("100ms", 0.1),
        ("1m1s1ms1us1ns", 61.001001001),
        ("2µs", 2e-6),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "10", "-1s", "+1s", "1 s", "1w", "ten", "1h 30m", ".s", "\N{DIGIT ONE}"]
)
def test_invalid_durations(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration such as 10s, got"):
        duration_s(text)
    with pytest.raises(ValidationError, match="must be a duration such as 10s, got"):
        CreekOptions(max_age=text)


def test_timeouts_are_positive() -> None:
    with pytest.raises(ValidationError, match="must be a duration of at least 1ms, got '0s'"):
        CreekOptions(nats_timeout="0s")
    with pytest.raises(ValidationError, match="must be a duration of at least 1ms, got '1us'"):
        CreekOptions(message_timeout="1us")
    assert CreekOptions(max_age="0").max_age == "0"


def test_log_levels_of_creek() -> None:
    levels = {name: CreekOptions(log_level=name).level for name in ("Trace", "warn", "PANIC")}
    assert levels == {"Trace": "debug", "warn": "warning", "PANIC": "error"}
    with pytest.raises(ValidationError, match="must be one of trace, debug, info"):
        CreekOptions(log_level="loud")


def test_the_retention_policy_is_limits() -> None:
    """Creek writes the number of the policy: 0 limits, 1 interest, 2 work queue."""
    assert CreekOptions(retention_policy="0").retention_policy == "0"
    for other in ("1", "interest", "workqueue"):
        with pytest.raises(ValidationError, match=f"must be limits, got '{other}'"):
            CreekOptions(retention_policy=other)


def test_the_data_folder_is_named_after_the_slot() -> None:
    assert CreekOptions(slot="s").folder == Path("tailrace-data/s").absolute()
    assert BridgeOptions(pub="p", data=Path("here")).folder == Path("here").absolute()


def test_secrets_are_not_shown() -> None:
    uri = SecretStr("postgres://u:canary@h/d")
    assert "canary" not in repr(CreekOptions(pg_uri=uri, nats_uri="nats://u:canary@h"))
