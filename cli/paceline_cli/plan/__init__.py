"""What to expect before anything runs: capacity, limits, replicas, p99."""
