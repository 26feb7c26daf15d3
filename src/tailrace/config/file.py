"""Reading `tailrace.yml`: YAML, references to the environment, and what is wrong with it.

Unknown keys are errors that name the nearest valid key; all problems of a file come as one
`ConfigError`. Values never appear in those errors, because any of them may hold a secret.
"""

from __future__ import annotations

import difflib
import os
import re
from typing import TYPE_CHECKING, Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from tailrace.config.sections import Config
from tailrace.errors import ConfigError
from tailrace.sinks.registry import SINKS
from tailrace.sinks.sink_type import SinkSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pydantic_core import ErrorDetails

_REFERENCE = re.compile(r"\$(?:\$\{|\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})")
_TWICE = "duplicate key"


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
        problems = [_describe(detail, values) for detail in error.errors(include_input=False)]
        # Not chained: pydantic's own text may quote what it refused.
        raise _refusal(path, problems) from None
    if path is None:
        return config
    moved: dict[str, object] = {"data": path.parent / config.data}
    if "path" not in given.get("log", {}):
        moved["log"] = config.log.model_copy(update={"path": path.parent / config.log.path})
    return config.model_copy(update=moved)


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


def _describe(detail: ErrorDetails, values: object) -> str:
    location = ".".join(str(part) for part in detail["loc"]) or "the file"
    if detail["type"] == "extra_forbidden":
        return f"{location}: unknown key{_nearest(detail['loc'], values)}"
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if detail["type"] in {"model_type", "model_attributes_type"}:
        message = "should be a section with keys of its own"
    return f"{location}: {message}"


def _nearest(location: tuple[int | str, ...], values: object) -> str:
    model: type[BaseModel] = Config
    for part in location[:-1]:
        values = values.get(part) if isinstance(values, dict) else None
        # The names under `pipelines` are the user's own.
        field = model.model_fields.get(str(part))
        model = model if field is None else section_of(field.annotation) or model
        if model is SinkSettings and isinstance(values, dict):
            model = SINKS.find(str(values.get("type"))).settings
    keys = list(model.model_fields)
    close = difflib.get_close_matches(str(location[-1]), keys, n=1)
    return f", did you mean {close[0]}?" if close else f"; the keys here are {', '.join(keys)}"


def section_of(annotation: object) -> type[BaseModel] | None:
    """The model of a key that holds other keys, or holds them by name; None for a plain value."""
    found = get_args(annotation)[-1] if get_origin(annotation) is dict else annotation
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _refusal(path: Path | None, problems: list[str]) -> ConfigError:
    name = str(path) if path else "settings"
    hint = "Correct the keys named above; `tailrace --help` shows them all."
    if len(problems) == 1:
        return ConfigError(f"{name}: {problems[0]}", hint=hint)
    lines = "\n".join(f"  {problem}" for problem in problems)
    return ConfigError(f"{name}: {len(problems)} problems\n{lines}", hint=hint)
