"""The settings that run, in the format of the settings file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from tailrace.run.loaded import is_secret

if TYPE_CHECKING:
    from tailrace.config.document import KeyPath
    from tailrace.run.loaded import Loaded

_PREFIX = "TAILRACE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A settings file, with a variable in the place of each secret."""

    text: str
    variables: dict[str, KeyPath]
    """The key of each variable."""


def export(loaded: Loaded) -> Exported:
    """The settings that run. Keys with their default value are left out: some keys are refused
    beside others, whatever their value."""
    variables: dict[str, KeyPath] = {}
    hidden = frozenset(loaded.defaults)

    def written(value: Any, path: KeyPath) -> Any:
        if isinstance(value, dict):
            return {
                key: written(each, (*path, key))
                for key, each in value.items()
                if (*path, key) not in hidden
            }
        if isinstance(value, list):
            return [written(each, (*path, str(n))) for n, each in enumerate(value)]
        if is_secret(value):
            return f"${{{_variable(path, variables)}}}"
        # In the file, `${` is the start of a reference.
        return value.replace("${", "$${") if isinstance(value, str) else value

    settings = written(loaded.settings, ())
    body = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True) if settings else ""
    head = [f"# The settings that ran at {loaded.at:%Y-%m-%d %H:%M:%S} UTC."]
    if variables:
        head += ["# Secrets are not exported. Set these variables, or write others:"]
        head += [f"#   {name}: {'.'.join(path)}" for name, path in variables.items()]
    return Exported(text="\n".join([*head, body]), variables=variables)


def _variable(path: KeyPath, taken: dict[str, KeyPath]) -> str:
    """The name of a variable for a key.

    >>> _variable(("pipelines", "to-nats", "sink", "url"), {})
    'TAILRACE_PIPELINES_TO_NATS_SINK_URL'
    """
    base = "_".join([_PREFIX, *(re.sub(r"[^A-Za-z0-9]", "_", each).upper() for each in path)])
    name, number = base, 2
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    taken[name] = path
    return name
