"""Processes beside the operator's that tune: each has the services whose uid falls to it."""
