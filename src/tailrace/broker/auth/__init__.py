"""Authentication and authorization of Kafka clients: SASL, TLS, users and ACLs."""
