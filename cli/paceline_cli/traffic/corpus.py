"""Real English text that every Python carries: the language reference's help topics."""

from functools import cache
from pydoc_data.topics import topics


@cache
def help_topics() -> str:
    """About 400,000 characters of prose and examples, in a fixed order, one space between words.

    Examples are indented by more than a short prompt is long.
    """
    return " ".join(word for name in sorted(topics) for word in topics[name].split())
