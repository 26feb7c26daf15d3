"""Settings of the sink `opensearch`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tailrace.sinks.search.settings import SearchSettings


class OpenSearchSink(SearchSettings):
    """OpenSearch."""

    type: Literal["opensearch"] = Field(description="This sink: `opensearch`.")
