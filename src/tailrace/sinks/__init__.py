"""Where messages go: one contract, one file a sink."""
