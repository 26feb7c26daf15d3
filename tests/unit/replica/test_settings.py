"""The settings of replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tailrace.config import Replication, load
from tailrace.config.replication import exposed, from_environment
from tailrace.errors import ConfigError
from tailrace.replica.leader import check_protection

if TYPE_CHECKING:
    from pathlib import Path


def test_a_follower_listens_on_loopback_by_default() -> None:
    assert not exposed(Replication().listen)


def test_a_follower_without_protection_is_refused() -> None:
    for address in ("0.0.0.0:7432", "db2:7432", "[::]:7432"):
        with pytest.raises(ConfigError, match="no protection"):
            check_protection((address,), protected=False)
        check_protection((address,), protected=True)
    check_protection(("127.0.0.1:1", "localhost:1", "[::1]:1"), protected=False)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"followers": ["db2"]}, "HOST:PORT"),
        ({"followers": ["db2:99999"]}, "HOST:PORT"),
        ({"followers": ["a:1", "a:1"]}, "twice"),
        ({"mode": "sync"}, "waits for 1 of 0"),
        ({"mode": "sync", "followers": ["a:1"], "quorum": 2}, "waits for 2 of 1"),
        ({"followers": ["a:1"], "visible": "quorum"}, "needs mode: sync"),
        ({"heartbeat_s": 30, "timeout_s": 30}, "less than"),
        ({"key": "short"}, "16 characters"),
    ],
)
def test_what_does_not_fit_is_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load(None, {"replication": values})


def test_the_variables_of_chroniks_design(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables set what a file leaves out."""
    variables = {
        "CHRONIK_REPLICATION_FOLLOWERS": "a:1, b:2",
        "CHRONIK_REPLICATION_MODE": "sync",
        "CHRONIK_REPLICATION_MAX_QUEUE_SIZE": "100000",
        "CHRONIK_WAL_RECEIVER_BIND_ADDR": "0.0.0.0:5432",
    }
    assert from_environment(variables) == {
        "followers": ["a:1", "b:2"],
        "mode": "sync",
        "listen": "0.0.0.0:5432",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert load().replication.followers == ("a:1", "b:2")
    file = tmp_path / "tailrace.yml"
    file.write_text("replication: {followers: ['c:3']}")
    assert load(file).replication.followers == ("c:3",)


def test_files_of_tls_are_relative_to_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "tailrace.yml"
    file.write_text("replication: {tls: {ca: ca.pem, cert: a.pem, key: /keys/a.key}}")
    tls = load(file).replication.tls
    assert tls is not None
    assert (tls.ca, str(tls.key)) == (tmp_path / "ca.pem", "/keys/a.key")
