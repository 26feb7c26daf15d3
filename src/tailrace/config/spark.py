"""Settings of Spark, and what protects a cluster."""

from __future__ import annotations

import re
from typing import Self

from pydantic import Field, model_validator

from tailrace.settings import Section

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})
_PROTECTION = ("spark.authenticate", "spark.network.crypto.enabled")


class Spark(Section):
    """The Spark application that runs the pipelines."""

    master: str = Field(
        default="local[*]",
        description="Where Spark runs: local[*], local[4], spark://host:7077, yarn, k8s://...",
    )
    conf: dict[str, str] = Field(
        default={},
        repr=False,
        description="Any Spark setting. It overrides Tailrace's own.",
    )

    @property
    def on_this_machine(self) -> bool:
        """Whether driver and executors run on this machine, and need not listen on a network."""
        return _on_this_machine(self.master)

    @model_validator(mode="after")
    def _remote_is_protected(self) -> Self:
        """Tasks carry DSNs and passwords of sinks to the executors."""
        missing = [key for key in _PROTECTION if self.conf.get(key, "").lower() != "true"]
        if missing and not self.on_this_machine:
            raise ValueError(
                f"master {self.master} sends passwords over the network: set "
                f"{' and '.join(missing)} to true in `conf`, and spark.authenticate.secret unless "
                "the cluster manager creates it"
            )
        return self


def _on_this_machine(master: str) -> bool:
    """Whether the executors run here.

    >>> [_on_this_machine(master) for master in ("local[4]", "spark://127.0.0.1:7077", "yarn")]
    [True, True, False]
    """
    hosts = re.sub(r":\d+(?=,|$)", "", master.removeprefix("spark://")).split(",")
    return master.startswith("local") or all(host in _LOOPBACK for host in hosts)
