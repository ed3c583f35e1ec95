"""Speculative decoding: guessed tokens that one step verifies, only where that pays."""
