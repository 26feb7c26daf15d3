"""Slack's incoming webhooks: `text`, and an attachment with a colour."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tailrace.watch.channels.post import post

if TYPE_CHECKING:
    from tailrace.config.alerts import Slack
    from tailrace.watch.message import Message

_COLOURS = {"error": "danger", "warning": "warning"}


def send_slack(slack: Slack, message: Message, *, timeout_s: float) -> None:
    """Send a message."""
    colour = "good" if message.kind in ("resolved", "test") else _COLOURS[message.severity]
    content = {
        "text": _escaped(message.title),
        "attachments": [
            {
                "color": colour,
                "fallback": _escaped(message.title),
                "text": _escaped(message.text),
            }
        ],
    }
    post(slack.url, json.dumps(content, ensure_ascii=False).encode(), {}, timeout_s=timeout_s)


def _escaped(text: str) -> str:
    """Text that Slack does not read as markup or as a mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
