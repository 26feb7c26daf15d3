"""NATS JetStream for sinks, services and consumers: one login, one TLS mapping, one client."""
