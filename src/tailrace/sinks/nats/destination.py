"""The destination of a message in NATS: a subject, filled from a template."""

from __future__ import annotations

from tailrace.jetstream.names import token
from tailrace.sinks.destination import Template


class SubjectTemplate(Template):
    """A template such as `cdc.{table}.{operation}`.

    >>> from tailrace.change import Op
    >>> SubjectTemplate("cdc.{table}.{operation}", database="shop").fill("a", "orders", Op.INSERT)
    'cdc.a.orders.insert'
    """

    kind = "subject"
    token = staticmethod(token)
