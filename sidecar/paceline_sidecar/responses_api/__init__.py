"""OpenAI's Responses API, stateless: items in, items out, and events of a stream."""
