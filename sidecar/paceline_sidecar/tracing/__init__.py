"""Traces of requests: spans by OTLP/HTTP, where the environment asks for them."""
