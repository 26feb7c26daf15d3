"""How clients log in, in the words of each."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The credentials of a client, and the certificate authority that it trusts."""

    user: str = ""
    """Without one there is no login."""
    password: str = ""
    mechanism: str = "SCRAM-SHA-256"
    authority: Path | None = None
    """With one there is TLS."""

    @property
    def protocol(self) -> str:
        """Kafka's name for it."""
        inner = "PLAINTEXT" if self.authority is None else "SSL"
        return f"SASL_{inner}" if self.user else inner

    def librdkafka(self) -> dict[str, str]:
        """For `confluent-kafka` and kcat."""
        found = {"security.protocol": self.protocol}
        if self.user:
            found |= {
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.user,
                "sasl.password": self.password,
            }
        return found | ({"ssl.ca.location": str(self.authority)} if self.authority else {})

    def python(self) -> dict[str, Any]:
        """For `aiokafka` and `kafka-python`, whose names are the same."""
        context = ssl.create_default_context(cafile=self.authority) if self.authority else None
        found: dict[str, Any] = {"security_protocol": self.protocol, "ssl_context": context}
        if self.user:
            found |= {
                "sasl_mechanism": self.mechanism,
                "sasl_plain_username": self.user,
                "sasl_plain_password": self.password,
            }
        return found

    def java(self) -> dict[str, str]:
        """For Apache's own."""
        module = "plain.Plain" if self.mechanism == "PLAIN" else "scram.Scram"
        found = {"security.protocol": self.protocol}
        if self.user:
            found |= {
                "sasl.mechanism": self.mechanism,
                "sasl.jaas.config": f"org.apache.kafka.common.security.{module}LoginModule required"
                f' username="{self.user}" password="{self.password}";',
            }
        if self.authority:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.authority)}
        return found
