"""Structured output: compiled grammars, and the token bitmasks that enforce them."""
