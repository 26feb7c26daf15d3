"""What runs? The settings of this process, without their secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, SecretStr

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tailrace.console.page import Document
    from tailrace.console.system import System

MASK = "••••••"
_SHOWN_KINDS = (str, int, float, bool)


def settings(system: System, query: Mapping[str, str]) -> Document:
    """The settings, as a tree and as lines."""
    del query
    tree = masked(system.config)
    return {"settings": tree, "lines": [list(line) for line in _lines("", tree)]}


def masked(value: object) -> Any:
    """A settings model as a document. A secret shows only whether it is set.

    >>> masked({"a": SecretStr("x"), "b": SecretStr(""), "c": 1})
    {'a': '••••••', 'b': '', 'c': 1}
    """
    if isinstance(value, SecretStr) or hasattr(value, "get_secret_value"):
        return MASK if value.get_secret_value() else ""
    if isinstance(value, BaseModel):
        # A field that settings do not print does not appear here either.
        return {
            name: masked(getattr(value, name)) if field.repr else MASK
            for name, field in type(value).model_fields.items()
        }
    if isinstance(value, dict):
        return {str(key): masked(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [masked(each) for each in value]
    return value if value is None or isinstance(value, _SHOWN_KINDS) else str(value)


def _lines(path: str, tree: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _lines(f"{path}.{key}" if path else key, value)
    else:
        yield path, tree
