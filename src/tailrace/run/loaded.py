"""What runs: the settings that `tailrace run` has loaded, in `DATA/settings/running.json`.

A secret is a keyed digest there, with a random key in `DATA/settings/key`: a changed secret is seen
as changed, and none can be read. Commands and the console compare the settings file with it, and
order a reload in `DATA/settings/order.json`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 - pydantic reads it
from typing import TYPE_CHECKING, Any

import orjson

from tailrace.config import absolute
from tailrace.config.document import MASK, KeyPath, defaults, document
from tailrace.errors import ConfigError
from tailrace.log.store import LocalStore
from tailrace.state_file import StateFile

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.config import Config

_FOLDER = "settings"
_KEY = "key"
_KEY_BYTES = 32
_DIGEST = re.compile(r"hmac-sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The settings that `tailrace run` has loaded last, and what came of the last order."""

    file: str
    at: datetime
    settings: dict[str, Any]
    """The settings as a document, with digests for secrets and absolute paths."""
    defaults: tuple[KeyPath, ...] = ()
    """The keys that have their default value."""
    overridden: tuple[KeyPath, ...] = ()
    """The keys that an option or a variable sets, whatever the file says."""
    orders: int = 0
    """The last order that was carried out or refused."""
    refusal: str = ""
    """Why the last reload was refused; empty if it was not."""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The request of an operator to load the settings file."""

    number: int = 0
    digest: str = ""
    """Of the settings that the operator has seen. Empty: whatever the file says."""
    user: str = ""
    reason: str = field(default="")


def loaded_file(data: Path) -> StateFile[Loaded]:
    """The state file of what runs."""
    return StateFile(data / _FOLDER / "running.json", Loaded)


def running(data: Path) -> Loaded:
    """The settings that run on a data folder. Raises ConfigError if they are not known."""
    found = loaded_file(data).read()
    if found is None:
        raise _unknown(data)
    return found


def _unknown(data: Path) -> ConfigError:
    return ConfigError(
        f"no settings are known to run on the data folder {data}",
        hint="Start `tailrace run`, or name its data folder with --data.",
    )


def order_file(data: Path) -> StateFile[Order]:
    """The file of the last order."""
    return StateFile(data / _FOLDER / "order.json", Order)


def last_order(data: Path) -> int:
    """The highest number that an order has had, also if the file of orders is lost or damaged."""
    order, loaded = order_file(data).read_or(None), loaded_file(data).read_or(None)
    return max(order.number if order else 0, loaded.orders if loaded else 0)


class Digests:
    """Settings as documents, with a digest for each secret."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def of(cls, data: Path) -> Digests:
        """With the key of a data folder. Raises ConfigError if there is none."""
        key = _read_key(data)
        if key is None:
            raise _unknown(data)
        return cls(key)

    @classmethod
    def create(cls, data: Path) -> Digests:
        """With the key of a data folder, which is created if it is missing."""
        key = _read_key(data)
        if key is None:
            key = secrets.token_bytes(_KEY_BYTES)
            LocalStore(data / _FOLDER, create=True).write_atomic(_KEY, key)
        return cls(key)

    def document(self, config: Config) -> dict[str, Any]:
        """Settings as a document."""
        found: dict[str, Any] = document(absolute(config), self._digest)
        return found

    def _digest(self, path: KeyPath, text: str) -> str:
        # With its place: equal secrets of two places do not look equal.
        message = orjson.dumps([*path, text])
        return f"hmac-sha256:{hmac.digest(self._key, message, hashlib.sha256).hex()}"


def is_secret(value: object) -> bool:
    """Whether a value of a document stands for a secret."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def shown(value: Any) -> Any:
    """A document without digests.

    >>> shown({"a": "hmac-sha256:" + 64 * "0", "b": [1]})
    {'a': '••••••', 'b': [1]}
    """
    if isinstance(value, dict):
        return {key: shown(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shown(each) for each in value]
    return MASK if is_secret(value) else value


def digest_of(settings: dict[str, Any]) -> str:
    """The digest of a whole document."""
    return hashlib.sha256(orjson.dumps(settings, option=orjson.OPT_SORT_KEYS)).hexdigest()


def loaded_now(
    config: Config, digests: Digests, *, file: Path, at: datetime, overridden: tuple[KeyPath, ...]
) -> Loaded:
    """What is recorded when settings are loaded."""
    return Loaded(
        file=str(file.absolute()),
        at=at,
        settings=digests.document(config),
        defaults=tuple(defaults(absolute(config))),
        overridden=overridden,
    )


def _read_key(data: Path) -> bytes | None:
    try:
        key = (data / _FOLDER / _KEY).read_bytes()
    except FileNotFoundError:
        return None
    return key if len(key) == _KEY_BYTES else None
