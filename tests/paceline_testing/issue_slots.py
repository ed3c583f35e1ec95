"""What a warp issues in a round of a kernel's loop, read from the machine code."""

import re
from collections import Counter
from dataclasses import dataclass

_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);")
_TARGET = re.compile(r"BRA.* `?\(?0x([0-9a-f]+)")
_PREDICATE = re.compile(r"^@!?U?P\w+ ")
_PRODUCTS = {"HMMA", "HGMMA", "UTCHMMA"}


@dataclass(frozen=True, slots=True)
class Round:
    """Instructions of one warp in a round."""

    products: int
    """Of the tensor cores."""
    others: int
    special: int
    """Of the others, those of the unit for exponentials."""


def round_of(sass: str) -> Round:
    """Return the shortest loop that multiplies and takes exponentials: attention without a mask."""
    lines = [(int(place, 16), text) for place, text in _LINE.findall(sass)]
    rounds = []
    for end, text in lines:
        target = _TARGET.search(text)
        if target is None or (start := int(target[1], 16)) >= end:
            continue
        names = Counter(
            re.split(r"[. ]", _PREDICATE.sub("", one))[0]
            for place, one in lines
            if start <= place <= end
        )
        products = sum(names[name] for name in _PRODUCTS)
        if products and names["MUFU"]:
            rounds.append(Round(products, names.total() - products, names["MUFU"]))
    return min(rounds, key=lambda each: each.others)
