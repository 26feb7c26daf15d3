"""What Tailrace knows about the sink `elasticsearch`."""

from __future__ import annotations

from tailrace.sinks.elasticsearch.settings import ElasticsearchSink
from tailrace.sinks.search.sink_type import SearchType


class ElasticsearchType(SearchType[ElasticsearchSink]):
    """Documents of Elasticsearch."""

    name = "elasticsearch"
    title = "Elasticsearch"
    settings = ElasticsearchSink


SINK = ElasticsearchType()
