"""Anthropic's Messages API on the wire: requests, answers, events, errors."""
