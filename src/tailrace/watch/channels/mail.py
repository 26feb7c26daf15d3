"""Mail by SMTP: title as subject, text and the JSON document as body."""

from __future__ import annotations

import contextlib
import json
import smtplib
import ssl
from email.message import EmailMessage
from typing import TYPE_CHECKING

from tailrace.errors import AlertUndeliveredError

if TYPE_CHECKING:
    from tailrace.config.alerts import Email
    from tailrace.watch.message import Message


def send_mail(email: Email, message: Message, *, timeout_s: float) -> str:
    """Send a message. One accepted recipient is enough: sent again, it would come again there."""
    try:
        server = _connected(email, timeout_s)
        try:
            if email.user:
                server.login(email.user, email.password.get_secret_value())
            refused = server.send_message(_mail(email, message))
            # The server has the mail, whatever it says now.
            with contextlib.suppress(OSError, smtplib.SMTPException):
                server.quit()
        finally:
            server.close()
    except smtplib.SMTPNotSupportedError as error:
        raise AlertUndeliveredError(
            "the mail server does not offer what `tls` or `user` needs"
        ) from error
    except smtplib.SMTPResponseException as error:
        # Its text is the server's, and may repeat what was sent.
        raise AlertUndeliveredError(f"the mail server answered {error.smtp_code}") from None
    except smtplib.SMTPRecipientsRefused as error:
        raise AlertUndeliveredError("the mail server refuses the recipients") from error
    except ssl.SSLError as error:
        raise AlertUndeliveredError(f"TLS failed: {error.reason}") from error
    except (OSError, smtplib.SMTPException) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise AlertUndeliveredError(f"the mail server cannot be reached: {reason}") from None
    return f"the mail server refuses {len(refused)} of the recipients" if refused else ""


def _connected(email: Email, timeout_s: float) -> smtplib.SMTP:
    if email.tls == "none":
        return smtplib.SMTP(email.host, email.server_port, timeout=timeout_s)
    context = ssl.create_default_context(cafile=email.tls_ca)
    if email.tls == "tls":
        return smtplib.SMTP_SSL(email.host, email.server_port, timeout=timeout_s, context=context)
    server = smtplib.SMTP(email.host, email.server_port, timeout=timeout_s)
    try:
        server.starttls(context=context)
    except BaseException:
        server.close()
        raise
    return server


def _mail(email: Email, message: Message) -> EmailMessage:
    mail = EmailMessage()
    mail["Subject"] = message.title
    mail["From"] = email.sender
    mail["To"] = ", ".join(email.to)
    mail["Message-ID"] = f"<{message.id}@tailrace>"
    if message.alert:
        # Mail programs show an alert, its repetitions and its recovery as one thread.
        mail["References"] = f"<{message.alert}@tailrace>"
    document = json.dumps(message.document(), indent=2, ensure_ascii=False)
    mail.set_content(f"{message.text}\n\n{document}\n")
    return mail
