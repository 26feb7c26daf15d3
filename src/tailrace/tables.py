"""Selection of tables and logical messages: patterns over `schema.table` and over prefixes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from tailrace.errors import ConfigError


@dataclass(frozen=True)
class Tables:
    """Patterns `schema.table` with `*` and `?`. A leading `!` excludes tables.

    A pattern without a dot is a table of the schema `public`. Inside double quotes, dots and stars
    are literal.

    >>> Tables(("public.*", "!public.tmp_*")).match("public", "users")
    True
    >>> Tables(("orders", '"odd.schema"."a*b"')).match("odd.schema", "a*b")
    True
    """

    patterns: tuple[str, ...] = ("*.*",)

    def __post_init__(self) -> None:
        for pattern in self.patterns:
            _compiled(pattern.removeprefix("!"))

    @classmethod
    def parse(cls, text: str) -> Tables:
        """Read patterns separated by commas, as in an option."""
        return cls(tuple(part.strip() for part in _split(text, ",") if part.strip()))

    @cached_property
    def _rules(self) -> tuple[tuple[bool, re.Pattern[str]], ...]:
        return tuple(
            (not pattern.startswith("!"), _compiled(pattern.removeprefix("!")))
            for pattern in self.patterns
        )

    def match(self, namespace: str, name: str) -> bool:
        """Whether a table is selected: the last pattern that matches decides.

        Without an including pattern all tables are selected before exclusions.
        """
        selected = not any(includes for includes, _ in self._rules)
        for includes, pattern in self._rules:
            if pattern.fullmatch(f"{namespace}\0{name}"):
                selected = includes
        return selected


WATCHDOG = "tailrace"
"""Prefix of the watchdog's messages: they pass through the log, and no pattern selects them."""


@dataclass(frozen=True)
class Prefixes:
    """Selection of logical messages: patterns over their prefix.

    >>> Prefixes(("outbox.*",))("outbox.orders"), Prefixes()("anything")
    (True, False)
    >>> Prefixes(("*",))("tailrace")
    False
    """

    patterns: tuple[str, ...] = ()

    @cached_property
    def _rules(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(_expression(pattern), re.DOTALL) for pattern in self.patterns)

    def __call__(self, prefix: str) -> bool:
        """Whether messages of a prefix are selected."""
        return prefix != WATCHDOG and any(rule.fullmatch(prefix) for rule in self._rules)


def _compiled(pattern: str) -> re.Pattern[str]:
    if pattern == "*":
        pattern = "*.*"
    parts = _split(pattern, ".")
    if len(parts) == 1:
        parts.insert(0, "public")
    if len(parts) != 2 or not all(parts):
        raise ConfigError(
            f"invalid table pattern {pattern!r}",
            hint='Write schema.table, schema.* or "odd.schema"."odd.table".',
        )
    return re.compile("\0".join(_expression(part) for part in parts), re.DOTALL)


def _expression(part: str) -> str:
    if part.startswith('"') and part.endswith('"') and len(part) > 1:
        return re.escape(part[1:-1].replace('""', '"'))
    return re.escape(part).replace(r"\*", "[^\0]*").replace(r"\?", "[^\0]")


def _split(text: str, separator: str) -> list[str]:
    parts, quoted = [""], False
    for letter in text:
        quoted ^= letter == '"'
        if letter == separator and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
