"""The OpenAI API on the wire: requests, responses, errors, events."""
