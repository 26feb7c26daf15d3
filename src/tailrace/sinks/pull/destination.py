"""Destinations of pulled messages: a name that each message carries, for consumers to look at."""

from __future__ import annotations

from tailrace.sinks.destination import Template


class NameTemplate(Template):
    """A template such as `{schema}.{table}`. Names stay as they are.

    >>> from tailrace.change import Op
    >>> NameTemplate("{table}", database="shop").fill("public", "odd name", Op.INSERT)
    'odd name'
    """

    kind = "name"

    @staticmethod
    def token(name: str) -> str:
        """A name, unchanged: consumers receive it as a value of JSON."""
        return name
