"""Prefill attention on a GPU: our kernel, or torch's SDPA where it is right and faster."""
