"""Settings as a document of plain values, in which every secret is replaced.

For pages, for the state file of what runs, and for `tailrace export`. What counts as a secret: a
`SecretStr`, each value of a field that is not printed (`repr=False`), and an address with a
password.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, SecretStr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Hide = Callable[["KeyPath", str], object]

KeyPath = tuple[str, ...]
"""The names of a key and of the sections that it is in."""
MASK = "••••••"
_PLAIN = (str, int, float, bool)
_ADDRESS = re.compile(r"://[^/@\s]*:[^/@\s]+@")
_KIND = "type"


def masked(value: object) -> Any:
    """Settings as a document. A secret shows only whether it is set.

    >>> masked({"a": SecretStr("x"), "b": SecretStr(""), "c": 1, "d": "http://u:x@host"})
    {'a': '••••••', 'b': '', 'c': 1, 'd': '••••••'}
    """
    return document(value, lambda _path, _text: MASK)


def document(value: object, hide: Hide, path: KeyPath = ()) -> Any:
    """Settings as a document. `hide` returns what stands for a secret that is set."""
    match value:
        case SecretStr():
            text = value.get_secret_value()
            return hide(path, text) if text else ""
        case BaseModel():
            return {
                name: document(each, hide, (*path, name))
                if field.repr
                else _hidden(each, hide, (*path, name))
                for name, field in type(value).model_fields.items()
                for each in [getattr(value, name)]
            }
        case dict():
            return {
                str(key): document(each, hide, (*path, str(key))) for key, each in value.items()
            }
        case list() | tuple() | set() | frozenset():
            return [document(each, hide, (*path, str(n))) for n, each in enumerate(value)]
        case str() if _ADDRESS.search(value):
            return hide(path, value)
    return value if value is None or isinstance(value, _PLAIN) else str(value)


def _hidden(value: object, hide: Hide, path: KeyPath) -> Any:
    """A field that is not printed: its keys are shown, and none of its values."""
    if isinstance(value, dict):
        return {str(key): _hidden(each, hide, (*path, str(key))) for key, each in value.items()}
    if value is None or isinstance(value, SecretStr):
        return document(value, hide, path)
    return hide(path, str(value))


def defaults(settings: BaseModel, path: KeyPath = ()) -> Iterator[KeyPath]:
    """The keys that have their default value, or that of their section's default."""
    for name, field in type(settings).model_fields.items():
        value, where = getattr(settings, name), (*path, name)
        if name != _KIND and value == field.get_default(call_default_factory=True):
            yield where
        elif isinstance(value, BaseModel):
            yield from defaults(value, where)
        elif isinstance(value, dict):
            for key, each in value.items():
                if isinstance(each, BaseModel):
                    yield from defaults(each, (*where, str(key)))


def leaves(tree: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """The keys of a document with their values, in its order."""
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    else:
        yield path, tree


def at(tree: Any, path: KeyPath) -> Any:
    """The value of a key; None if there is no such key."""
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def replaced(tree: Any, path: KeyPath, value: object) -> Any:
    """The document with another value of a key."""
    if not path:
        return value
    inner = tree.get(path[0]) if isinstance(tree, dict) else None
    base = tree if isinstance(tree, dict) else {}
    return {**base, path[0]: replaced(inner, path[1:], value)}
