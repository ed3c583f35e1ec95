"""What surrounds the sidecar in `benchmarks/edge.py`: an engine, clients, and servers beside it."""
