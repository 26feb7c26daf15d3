"""The token of requests: from the settings, or from a private file."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from tailrace.config import Config
from tailrace.run.token import FILE, is_authorised, token_of

if TYPE_CHECKING:
    from pathlib import Path


def settings(data: Path, token: str = "") -> Config:
    return Config.model_validate({"data": str(data), "http": {"token": token}})


def test_a_token_of_the_settings_needs_no_file(tmp_path: Path) -> None:
    config = settings(tmp_path / "data", "0123456789abcdef")
    assert token_of(config) == "0123456789abcdef"
    assert not (tmp_path / "data").exists()
    assert "0123456789abcdef" not in repr(config)


def test_a_random_token_is_kept_in_a_private_file(tmp_path: Path) -> None:
    token = token_of(settings(tmp_path / "data"))
    assert len(token) >= 43
    file = tmp_path / "data" / FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().strip() == token
    assert token_of(settings(tmp_path / "data")) == token
    assert token_of(settings(tmp_path / "other")) != token


@pytest.mark.parametrize(("content", "mode"), [(b"", 0o600), (b"\xff" * 40, 0o600)])
def test_an_invalid_file_is_replaced(tmp_path: Path, content: bytes, mode: int) -> None:
    file = tmp_path / FILE
    file.write_bytes(content)
    file.chmod(mode)
    token = token_of(settings(tmp_path))
    assert file.read_text() == f"{token}\n"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_token_that_others_may_know_is_replaced(tmp_path: Path, mode: int) -> None:
    token = token_of(settings(tmp_path))
    (tmp_path / FILE).chmod(mode)
    assert token_of(settings(tmp_path)) != token
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        ("Bearer 0123456789abcdef", True),
        ("bearer  0123456789abcdef", True),
        ("Bearer 0123456789abcdeF", False),
        ("0123456789abcdef", False),
        ("Basic 0123456789abcdef", False),
        ("Bearer ", False),
        ("Bearer \u00e9", False),
        ("", False),
    ],
)
def test_the_header(header: str, allowed: bool) -> None:
    assert is_authorised(header, "0123456789abcdef") is allowed
