"""The metrics that Tailrace exposes, and those that an expression of PromQL uses.

For everything in `deploy/` that names metrics. Prometheus adds some labels by itself.
"""

from __future__ import annotations

import re

from tailrace.observe.metrics import exposition
from tests.unit.observe.test_figures import SYSTEM

SCRAPED = frozenset({"job", "instance"})
"""Labels that Prometheus adds to every metric that it scrapes."""
_NAME = re.compile(r"\b(?:bridge|tailrace|creek)_[a-z_0-9]+")
_MATCHER = re.compile(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring) *\(([^)]*)\)")


def exposed() -> dict[str, frozenset[str]]:
    """The labels of each metric, from a complete answer of /metrics."""
    body, _ = exposition(lambda: SYSTEM)
    labels: dict[str, frozenset[str]] = {}
    for line in body.decode().splitlines():
        if not line.startswith("#"):
            name = re.split(r"[{ ]", line)[0]
            found = re.findall(r'(\w+)="', line)
            labels[name] = labels.get(name, SCRAPED).union(found)
    return labels


def metrics_of(expression: str) -> set[str]:
    """The metrics that an expression reads.

    >>> sorted(metrics_of('rate(tailrace_events_total{job="a"}[5m]) / tailrace_lag_bytes'))
    ['tailrace_events_total', 'tailrace_lag_bytes']
    """
    return set(_NAME.findall(expression))


def labels_of(expression: str) -> set[str]:
    """The labels by which it selects and groups.

    >>> sorted(labels_of('sum by (state) (tailrace_health_check{job="a",check=~"disk|log"})'))
    ['check', 'job', 'state']
    """
    grouped = (name.strip() for names in _GROUPING.findall(expression) for name in names.split(","))
    return set(_MATCHER.findall(expression)) | {name for name in grouped if name}


def check_expression(expression: str, texts: str = "") -> None:
    """Fail unless its metrics exist, with its labels and those that `texts` show.

    Texts name labels as rules (`$labels.NAME`) and as legends of Grafana (`{{NAME}}`) do.
    """
    known, used = exposed(), metrics_of(expression)
    assert used, expression
    assert used <= known.keys(), expression
    shown = set(re.findall(r"\$labels\.(\w+)|{{(\w+)}}", texts))
    names = {name for pair in shown for name in pair if name}
    names |= labels_of(expression)
    assert names <= frozenset.intersection(*(known[name] for name in used)), expression
