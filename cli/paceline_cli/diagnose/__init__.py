"""Say where latency comes from, what binds and what would help."""
