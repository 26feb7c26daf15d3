"""The settings of `tailrace.yml`: pydantic models, frozen, with every key described once.

The descriptions are what `--help`, the console's forms and the reference page show. Unknown keys
are errors that name the nearest valid key; all problems of a file come as one `ConfigError`.
Values never appear in those errors, because any of them may hold a secret.

Not for talking to PostgreSQL: a DSN is checked by `tailrace.capture.connection`.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
)

from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic_core import ErrorDetails

_UNITS = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_REFERENCE = re.compile(r"\$(?:\$\{|\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})")
_NAME_BYTES = 63
_TWICE = "duplicate key"


def _size(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    units = {unit.lower(): factor for unit, factor in _UNITS.items()}
    if match is None or match[2].lower() not in units:
        raise ValueError("should be a number of bytes, or a size such as 64MiB or 10GiB")
    return int(float(match[1]) * units[match[2].lower()])


def _slot_name(name: str) -> str:
    if re.fullmatch(r"[a-z0-9_]{1,63}", name) is None:
        raise ValueError("should be 1 to 63 of the characters a-z, 0-9 and _")
    return name


def _identifier(name: str) -> str:
    if not 0 < len(name.encode()) <= _NAME_BYTES or "\0" in name:
        raise ValueError("should be a PostgreSQL name of 1 to 63 bytes")
    return name


Bytes = Annotated[int, BeforeValidator(_size)]
SlotName = Annotated[str, AfterValidator(_slot_name)]
Identifier = Annotated[str, AfterValidator(_identifier)]


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False
    )


class Source(_Section):
    """The database that changes are read from: one database, one publication, one slot."""

    dsn: SecretStr = Field(
        default=SecretStr(""),
        description=(
            "Connection string or URI, with every option libpq knows (sslmode, sslrootcert, "
            "target_session_attrs ...). Empty: the usual PG* environment variables."
        ),
    )
    slot: SlotName = Field(
        default="tailrace",
        description="Replication slot to read: PostgreSQL keeps our place in the WAL under it.",
    )
    publication: Identifier = Field(
        default="tailrace",
        description="Publication that names the tables to capture.",
    )


class Log(_Section):
    """The durable log that capture writes and everything else reads."""

    path: Path = Field(
        default=Path("tailrace-data/log"),
        description="Folder of the log. In a file, relative to that file's folder.",
    )
    flush_ms: int = Field(
        default=20,
        ge=0,
        description="Longest time in milliseconds a committed transaction waits for its fsync.",
    )
    flush_bytes: Bytes = Field(
        default=2**20,
        ge=1,
        description="Bytes gathered before an fsync is made at once. Sizes such as 1MiB are read.",
    )
    segment_bytes: Bytes = Field(
        default=64 * 2**20,
        ge=1,
        description="Size past which a new segment file is started.",
    )
    codec: Literal["none", "zstd"] = Field(
        default="none",
        description="Compression of new entries. Old entries stay as they are and stay readable.",
    )
    keep_hours: float = Field(
        default=24.0,
        ge=0,
        description="Hours of history kept beyond what every reader has consumed.",
    )
    keep_bytes: Bytes = Field(
        default=10 * 2**30,
        ge=0,
        description="Bytes of history kept beyond what every reader has consumed.",
    )


class Capture(_Section):
    """The loop that receives, appends, fsyncs and acknowledges."""

    heartbeat_s: float = Field(
        default=0.0,
        ge=0,
        description="Seconds between transactional heartbeat messages in the source. 0: off.",
    )
    messages: bool = Field(
        default=True,
        description="Capture logical messages (pg_logical_emit_message) as well as rows.",
    )
    progress_s: float = Field(
        default=10.0,
        gt=0,
        description=(
            "Longest time in seconds before WAL that holds no change of ours is acknowledged."
        ),
    )
    connect_timeout_s: int = Field(
        default=10,
        ge=1,
        description="Seconds to wait for the server to answer, unless the DSN has its own.",
    )


class Config(_Section):
    """The whole of `tailrace.yml`. Every key has a default; an empty file is valid."""

    source: Source = Field(default=Source(), description=Source.__doc__)
    log: Log = Field(default=Log(), description=Log.__doc__)
    capture: Capture = Field(default=Capture(), description=Capture.__doc__)


def load(
    path: Path | None = None,
    overrides: Mapping[str, Mapping[str, object]] | None = None,
) -> Config:
    """Read a config file, or only defaults without one, and put `overrides` over it.

    `${NAME}` and `${NAME:-default}` in the file's strings come from the environment; `$${` is a
    plain `${`. Overrides are taken as they are.

    >>> load(None, {"log": {"flush_bytes": "2MiB"}}).log.flush_bytes
    2097152
    """
    values = _read(path) if path else {}
    given = overrides or {}
    for section, keys in given.items():
        base = values.get(section) or {}
        values[section] = base | dict(keys) if isinstance(base, dict) else base
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        problems = [_describe(detail) for detail in error.errors(include_input=False)]
        # Not chained: pydantic's own text may quote what it refused.
        raise _refusal(path, problems) from None
    if path and "path" not in given.get("log", {}):
        log = config.log.model_copy(update={"path": path.parent / config.log.path})
        return config.model_copy(update={"log": log})
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"cannot read {path}: {reason}") from error
    try:
        values = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        # PyYAML quotes the line it stopped at, and that line may be the DSN.
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        reason = "a key twice" if error.problem == _TWICE else "not valid YAML"
        raise ConfigError(f"{path}: {reason} at {where}") from None
    except yaml.YAMLError:
        raise ConfigError(f"{path}: not valid YAML") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise _refusal(path, ["the file should hold sections such as `source:` and `log:`"])
    # A section whose keys are all commented out reads as None.
    return _expanded(path, {key: value for key, value in values.items() if value is not None})


class _Loader(yaml.SafeLoader):
    """YAML without silent overwriting: a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.MarkedYAMLError(problem=_TWICE, problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def _expanded(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    missing: list[str] = []

    def expand(value: Any, location: str) -> Any:
        if isinstance(value, dict):
            return {
                key: expand(item, f"{location}.{key}" if location else str(key))
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [expand(item, f"{location}[{index}]") for index, item in enumerate(value)]
        if not isinstance(value, str):
            return value
        missing.extend(f"{location}: the variable {name} is not set" for name in _unset(value))
        return _REFERENCE.sub(_value, value)

    expanded: dict[str, Any] = expand(values, "")
    if missing:
        raise _refusal(path, missing)
    return expanded


def _unset(text: str) -> Iterator[str]:
    for match in _REFERENCE.finditer(text):
        if match[1] and match[2] is None and match[1] not in os.environ:
            yield match[1]


def _value(match: re.Match[str]) -> str:
    if not match[1]:
        return "${"
    # As in a shell, `:-` also replaces a variable that is set but empty.
    found = os.environ.get(match[1], "")
    return found or match[2] or ""


def _describe(detail: ErrorDetails) -> str:
    location = ".".join(str(part) for part in detail["loc"]) or "the file"
    if detail["type"] == "extra_forbidden":
        return f"{location}: unknown key{_nearest(detail['loc'])}"
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if detail["type"] in {"model_type", "model_attributes_type"}:
        message = "should be a section with keys of its own"
    return f"{location}: {message}"


def _nearest(location: tuple[int | str, ...]) -> str:
    model: type[BaseModel] = Config
    for part in location[:-1]:
        inner = model.model_fields[str(part)].annotation
        assert isinstance(inner, type)
        assert issubclass(inner, BaseModel)
        model = inner
    keys = list(model.model_fields)
    close = difflib.get_close_matches(str(location[-1]), keys, n=1)
    return f", did you mean {close[0]}?" if close else f"; the keys here are {', '.join(keys)}"


def _refusal(path: Path | None, problems: list[str]) -> ConfigError:
    name = str(path) if path else "settings"
    hint = "Correct the keys named above; `tailrace --help` shows them all."
    if len(problems) == 1:
        return ConfigError(f"{name}: {problems[0]}", hint=hint)
    lines = "\n".join(f"  {problem}" for problem in problems)
    return ConfigError(f"{name}: {len(problems)} problems\n{lines}", hint=hint)
