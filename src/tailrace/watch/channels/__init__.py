"""How is an alert sent? One file per kind of channel, and `send` for all of them.

A function sends one message and returns when the receiver has accepted it, or raises
AlertUndeliveredError. Its text names no address, no password and no answer: it is logged and shown.
So is what `send` returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from tailrace.config.alerts import Command, Email, Slack, Webhook

if TYPE_CHECKING:
    from tailrace.config.alerts import Channel
    from tailrace.watch.message import Message


def send(channel: Channel, message: Message) -> str:
    """Send a message; who has not got it though others have. Raises AlertUndeliveredError."""
    # Each loads libraries that a watchdog without such a channel does not need.
    match channel.kind:
        case Webhook() as webhook:
            from tailrace.watch.channels.webhook import send_webhook  # noqa: PLC0415

            send_webhook(webhook, message, timeout_s=channel.timeout_s)
        case Slack() as slack:
            from tailrace.watch.channels.slack import send_slack  # noqa: PLC0415

            send_slack(slack, message, timeout_s=channel.timeout_s)
        case Email() as email:
            from tailrace.watch.channels.mail import send_mail  # noqa: PLC0415

            return send_mail(email, message, timeout_s=channel.timeout_s)
        case Command() as command:
            from tailrace.watch.channels.program import run_program  # noqa: PLC0415

            run_program(command, message, timeout_s=channel.timeout_s)
        case never:
            assert_never(never)
    return ""
