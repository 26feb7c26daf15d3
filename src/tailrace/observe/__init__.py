"""Observation of a running system: figures, metrics, endpoints, logs, and failpoints for tests."""
