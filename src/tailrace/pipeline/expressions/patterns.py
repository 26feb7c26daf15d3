r"""Patterns of regular expressions and of LIKE: which ones Java matches in bounded time.

Java's matcher backtracks. A repeated group that can match the same text in several ways, such as
`(a+)+` or `(a|aa)*`, takes exponential time on a text that does not match, and one stack frame per
repetition on one that does. A possessive repetition, `(a+)++`, gives nothing back: it is linear and
needs no stack. So a repeated group with a choice in it must be possessive.

    (ab)+   (a+)?     allowed: one way to match
    (a+)+   (a?){9}   refused: a repetition in a repeated group
    (a|b)*            refused: an alternative in a repeated group
    (a+)++            allowed: possessive

The scanner refuses what it cannot read without doubt: quoting with `\Q`, nested brackets, comments.
"""

from __future__ import annotations

import re
from typing import Final

MAX_CHARACTERS: Final = 1_000
MAX_REPETITIONS: Final = 5
"""Repetitions without an upper limit, such as `.*`. The time of a match grows with the length of
the text to the power of their number."""
MAX_COUNT: Final = 1_000
"""The largest number in `{n,m}`."""

_TOKEN = re.compile(
    r"""
    (?P<class> \[ \^?+ (?: \\[^Qc] | [^\[\]\\] )+ \] )
  | (?P<flags> \( \? [imsu]* (?: - [imsu]+ )? \) )
  | (?P<open> \( (?: (?!\?) | \? (?: [:=!>] | <[=!] | <[a-zA-Z][a-zA-Z0-9]*> | [imsu-]+ : ) ) )
  | (?P<close> \) )
  | (?P<or> \| )
  | (?P<quantifier> (?: [*+?] | \{ (?P<least>\d+) (?P<range> , (?P<most>\d*) )? \} ) [+?]? )
  | (?P<escape> \\ (?: [pPxN]\{[^{}]*\} | [^QEck1-9] ) )
  | (?P<refused> \\. | \\\Z | \[ | \( )
  | (?P<character> . )
    """,
    re.VERBOSE | re.DOTALL,
)


def problem(pattern: str) -> str:
    """Why a pattern is refused; empty if it is allowed."""
    if len(pattern) > MAX_CHARACTERS:
        return f"a pattern may have at most {MAX_CHARACTERS:,} characters"
    unlimited = 0
    choices = [False]  # Per open group: whether it has a choice in it.
    atom_has_choice = False  # Whether the last item, which a quantifier repeats, has one.
    for token in _TOKEN.finditer(pattern):
        match token.lastgroup:
            case "refused":
                return f"{token[0]} is not supported in a pattern{_instead(token[0])}"
            case "open":
                choices.append(False)
            case "close" if len(choices) > 1:
                atom_has_choice = choices.pop()
                choices[-1] |= atom_has_choice
            case "or":
                choices[-1] = True
            case "quantifier":
                if reason := _refused_quantifier(token, atom_has_choice=atom_has_choice):
                    return reason
                unlimited += _most(token) is None and not _possessive(token)
                atom_has_choice = not (token["least"] and not token["range"])
                choices[-1] |= atom_has_choice
            case _:
                atom_has_choice = False
    if unlimited > MAX_REPETITIONS:
        return (
            f"a pattern may have at most {MAX_REPETITIONS} repetitions without an upper limit; "
            "possessive ones, such as .*+, do not count"
        )
    return ""


def like_problem(pattern: str) -> str:
    """Why a pattern of LIKE is refused; empty if it is allowed. Spark reads `%` as `.*`."""
    if len(pattern) > MAX_CHARACTERS:
        return f"a pattern may have at most {MAX_CHARACTERS:,} characters"
    if len(re.findall("%+", pattern)) > MAX_REPETITIONS:
        return f"a pattern of LIKE may have at most {MAX_REPETITIONS} %"
    return ""


def _refused_quantifier(token: re.Match[str], *, atom_has_choice: bool) -> str:
    most = _most(token)
    if max(int(token["least"] or 0), most or 0) > MAX_COUNT:
        return f"{token[0]}: a pattern may repeat at most {MAX_COUNT:,} times"
    if atom_has_choice and most not in (0, 1) and not _possessive(token):
        return (
            f"{token[0]} repeats a group that has a repetition or an alternative in it, which can "
            f"take unlimited time: write {token[0].rstrip('?')}+ to repeat it without backtracking"
        )
    return ""


def _most(token: re.Match[str]) -> int | None:
    """How often a quantifier repeats at most; None without a limit."""
    if token["least"] is None:
        return 1 if token[0][0] == "?" else None
    if token["range"] is None:
        return int(token["least"])
    return int(token["most"]) if token["most"] else None


def _possessive(token: re.Match[str]) -> bool:
    return len(token[0]) > 1 and token[0].endswith("+")


def _instead(refused: str) -> str:
    if refused == "[":
        return r": inside of brackets, write \[ and \]"
    return ": escape each character" if refused in (r"\Q", r"\E") else ""
