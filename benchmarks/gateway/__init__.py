"""Compares what a gateway balances by, in front of a fast pod and a slow one."""
