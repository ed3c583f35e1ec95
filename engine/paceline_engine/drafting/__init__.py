"""Speculative decoding: draft tokens that one step verifies, only where that pays."""
