"""The sink `eventbridge`: event buses of Amazon EventBridge."""
