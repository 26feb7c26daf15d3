"""Stage ①: a PostgreSQL source into the log, with its slot, publication and preflight."""
