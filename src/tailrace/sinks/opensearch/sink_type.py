"""What Tailrace knows about the sink `opensearch`."""

from __future__ import annotations

from tailrace.sinks.opensearch.settings import OpenSearchSink
from tailrace.sinks.search.sink_type import SearchType


class OpenSearchType(SearchType[OpenSearchSink]):
    """Documents of OpenSearch."""

    name = "opensearch"
    title = "OpenSearch"
    settings = OpenSearchSink


SINK = OpenSearchType()
