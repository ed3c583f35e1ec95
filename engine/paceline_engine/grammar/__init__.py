"""Structured output: grammars, compiled, and the token bitmasks that keep to them."""
