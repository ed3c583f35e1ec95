"""Where latency comes from, what the engine is bound by and what would help. Pure."""
