"""The sink `opensearch`: documents of OpenSearch. See `tailrace.sinks.search`."""
