"""Reads `tailrace.yml`: YAML, references to environment variables, and validation.

An unknown key is an error that names the nearest valid key. All problems of a file are reported in
one `ConfigError`. Values never appear in it, because any of them may hold a secret.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from tailrace.config.pinned import pinned
from tailrace.config.replication import from_environment
from tailrace.config.sections import Config
from tailrace.errors import ConfigError
from tailrace.settings import error_text
from tailrace.sinks.registry import SINKS
from tailrace.sinks.sink_type import SinkSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydantic_core import ErrorDetails

    from tailrace.config.http import Http
    from tailrace.config.replication import Replication

_REFERENCE = re.compile(r"\$(?:\$\{|\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})")
_DUPLICATE = "duplicate key"


def load(
    path: Path | None = None,
    overrides: Mapping[str, Mapping[str, object]] | None = None,
    *,
    on_disk: bool = False,
) -> Config:
    """Read a config file, or the defaults without one, then apply `overrides`.

    A process of `tailrace run` reads the content that `tailrace run` has loaded, or, `on_disk`,
    that of the file as it is now.

    `${NAME}` and `${NAME:-default}` in the file's strings are replaced from the environment; `$${`
    is a literal `${`. Overrides are not expanded.

    >>> load(None, {"log": {"flush_bytes": "2MiB"}}).log.flush_bytes
    2097152
    """
    values = _read(path, on_disk=on_disk) if path else {}
    values.setdefault("replication", from_environment())
    overridden = overrides or {}
    for section, keys in overridden.items():
        base = values.get(section) or {}
        values[section] = base | dict(keys) if isinstance(base, dict) else base
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        problems = [_describe(detail, values) for detail in error.errors(include_input=False)]
        # Not chained: pydantic's own text may quote the invalid value.
        raise _invalid(path, problems) from None
    if path is None:
        return config
    folder = path.parent
    return _moved(config, lambda file: folder / file, log="path" not in overridden.get("log", {}))


def absolute(config: Config) -> Config:
    """The same settings, with absolute paths where `load` resolves paths."""
    return _moved(config, Path.absolute, log=True)


def _moved(config: Config, move: Callable[[Path], Path], *, log: bool) -> Config:
    """The settings with other paths where a path is relative to the settings file."""
    moved: dict[str, object] = {"data": move(config.data)}
    if log:
        moved["log"] = config.log.model_copy(update={"path": move(config.log.path)})
    sections: dict[str, Replication | Http] = {
        "replication": config.replication,
        "http": config.http,
    }
    for key, each in sections.items():
        if each.tls is not None:
            files = {name: move(file) for name, file in each.tls}
            moved[key] = each.model_copy(update={"tls": each.tls.model_copy(update=files)})
    return config.model_copy(update=moved)


def _read(path: Path, *, on_disk: bool) -> dict[str, Any]:
    content = None if on_disk else pinned(path)
    try:
        text = (path.read_bytes() if content is None else content).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"cannot read {path}: {reason}") from error
    try:
        values = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        # PyYAML quotes the line it stopped at, and that line may be the DSN.
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = _DUPLICATE if error.problem == _DUPLICATE else "invalid YAML"
        raise ConfigError(f"{path}: {reason}{where}") from None
    except yaml.YAMLError:
        raise ConfigError(f"{path}: invalid YAML") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise _invalid(path, ["must be sections such as `source:` and `log:`"])
    # A section whose keys are all commented out reads as None.
    return _expanded(path, {key: value for key, value in values.items() if value is not None})


class _Loader(yaml.SafeLoader):
    """YAML in which a duplicate key is an error, not an overwrite."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.MarkedYAMLError(problem=_DUPLICATE, problem_mark=key.start_mark)
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
        missing.extend(
            f"{location}: the environment variable {name} is not set" for name in _unset(value)
        )
        return _REFERENCE.sub(_value, value)

    expanded: dict[str, Any] = expand(values, "")
    if missing:
        raise _invalid(path, missing)
    return expanded


def _unset(text: str) -> Iterator[str]:
    for match in _REFERENCE.finditer(text):
        if match[1] and match[2] is None and match[1] not in os.environ:
            yield match[1]


def _value(match: re.Match[str]) -> str:
    if not match[1]:
        return "${"
    # As in a shell, `:-` also replaces a variable that is set but empty.
    return os.environ.get(match[1], "") or match[2] or ""


def _describe(detail: ErrorDetails, values: object) -> str:
    location = ".".join(str(part) for part in detail["loc"]) or "the file"
    if detail["type"] == "extra_forbidden":
        return f"{location}: unknown key{_nearest(detail['loc'], values)}"
    if detail["type"] in {"model_type", "model_attributes_type"}:
        return f"{location}: must be a section with keys"
    return f"{location}: {error_text(detail)}"


def _nearest(location: tuple[int | str, ...], values: object) -> str:
    model: type[BaseModel] = Config
    for part in location[:-1]:
        values = values.get(part) if isinstance(values, dict) else None
        # The keys under `pipelines` are names that the user chooses.
        field = model.model_fields.get(str(part))
        model = model if field is None else section_of(field.annotation) or model
        if model is SinkSettings and isinstance(values, dict):
            model = SINKS.find(str(values.get("type"))).settings
    keys = list(model.model_fields)
    close = difflib.get_close_matches(str(location[-1]), keys, n=1)
    return f", did you mean {close[0]}?" if close else f"; valid keys: {', '.join(keys)}"


def section_of(annotation: object) -> type[BaseModel] | None:
    """The model of a key with a section, sections by name or a list of them, or None if plain."""
    kind = next(
        (each for each in get_args(annotation)[::-1] if each not in (NoneType, ...)), annotation
    )
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _invalid(path: Path | None, problems: list[str]) -> ConfigError:
    name = str(path) if path else "settings"
    hint = "Correct these keys. docs/reference/configuration.md lists all of them."
    if len(problems) == 1:
        return ConfigError(f"{name}: {problems[0]}", hint=hint)
    lines = "\n".join(f"  {problem}" for problem in problems)
    return ConfigError(f"{name}: {len(problems)} problems\n{lines}", hint=hint)
