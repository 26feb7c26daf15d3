"""The sink `elasticsearch`: documents of Elasticsearch. See `tailrace.sinks.search`."""
