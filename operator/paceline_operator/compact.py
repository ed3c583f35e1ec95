"""Keep many objects of the same kinds small: a key or a word that many hold is kept once.

The JSON decoder makes each anew for each object.
"""

from typing import Any, Final

_LONGEST: Final = 64
_MOST: Final = 16_384
_words: dict[str, str] = {}


def compact(value: Any) -> Any:
    """Copy a JSON value, sharing its words with all others."""
    if isinstance(value, dict):
        return {_shared(key): compact(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [compact(inner) for inner in value]
    if isinstance(value, str):
        return _shared(value)
    return value


def _shared(word: str) -> str:
    """Give the one that is kept; names that are each another's own must not fill the memory."""
    found = _words.get(word)
    if found is None and len(word) <= _LONGEST and len(_words) < _MOST:
        _words[word] = word
    return word if found is None else found
