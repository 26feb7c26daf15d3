from __future__ import annotations

import pickle

from tailrace import errors
from tailrace.errors import TailraceError


def kinds() -> list[type[TailraceError]]:
    found: list[type[TailraceError]] = []
    waiting = [TailraceError]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if "code" in vars(kind) and kind is not TailraceError:
            found.append(kind)
    return found


def test_errors_survive_pickling() -> None:
    for kind in kinds():
        copy = pickle.loads(pickle.dumps(kind("what", hint="do this")))
        assert (type(copy), str(copy), copy.hint) == (kind, "what", "do this")


def test_codes_and_exit_codes_are_unique() -> None:
    assert len({kind.code for kind in kinds()}) == len(kinds())
    assert len({kind.exit_code for kind in kinds()}) == len(kinds())


def test_the_drawn_tree_is_the_tree() -> None:
    drawn = errors.__doc__ or ""
    for kind in kinds():
        line = next(line for line in drawn.splitlines() if f" {kind.__name__} " in line)
        assert line.split()[-3:] == [kind.code, str(kind.exit_code), kind.retry.value]
