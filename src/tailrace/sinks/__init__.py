"""④ Sinks: one contract, one registry, one folder per sink."""
