"""Real English text that every Python carries: the language reference's help topics."""

from pydoc_data.topics import topics


def help_topics() -> str:
    """About 450,000 characters of prose and examples, in a fixed order."""
    return "\n\n".join(topics[name] for name in sorted(topics))
