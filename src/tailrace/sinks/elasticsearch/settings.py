"""Settings of the sink `elasticsearch`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from tailrace.sinks.search.settings import SearchSettings


class ElasticsearchSink(SearchSettings):
    """Elasticsearch."""

    type: Literal["elasticsearch"] = Field(description="This sink: `elasticsearch`.")
    api_key: SecretStr = Field(
        default=SecretStr(""),
        description="API key in its encoded form, instead of a user and a password.",
    )
