"""Questions whose answers are known, and many wordings of each: no prompt is asked twice."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

OF_PASSAGES = (  # of examples/pipelines/passages.txt, each with the number of the one that answers
    ("When does the bakery open?", 0),
    ("What does the bakery sell on Fridays?", 0),
    ("When is the museum of clocks closed?", 1),
    ("How often does bus 14 run?", 2),
    ("What does the harbour master's office answer?", 3),
    ("How does the swimming pool heat its water?", 4),
    ("How long does the public library lend films?", 5),
    ("When was the bridge over the Aare rebuilt?", 6),
    ("How many stalls of the market hall sell cheese?", 7),
    ("How high is the tower of the church?", 8),
    ("When is the theatre silent?", 9),
)
OF_KNOWLEDGE = (  # each with what a right answer says
    ("What is the capital of France?", "Paris"),
    ("What is the capital of Japan?", "Tokyo"),
    ("What is the capital of Italy?", "Rome"),
    ("What is the capital of Australia?", "Canberra"),
    ("What is the capital of Canada?", "Ottawa"),
    ("What is the capital of Egypt?", "Cairo"),
    ("How many legs does a spider have?", "8|eight"),
    ("How many days are in a leap year?", "366"),
    ("How many minutes are in an hour?", "60|sixty"),
    ("Who wrote Hamlet?", "Shakespeare"),
    ("Who painted the Mona Lisa?", "Leonardo|Vinci"),
    ("Who developed the theory of relativity?", "Einstein"),
    ("What is 2 + 2?", "4|four"),
    ("What is 17 times 23?", "391"),
    ("What is the square root of 144?", "12|twelve"),
    ("What is the chemical symbol of gold?", r"\bAu\b"),
    ("What is the chemical symbol of iron?", r"\bFe\b"),
    ("Which planet is the third from the sun?", "Earth"),
    ("Which planet is the largest of the solar system?", "Jupiter"),
    ("Which gas do plants take from the air?", "carbon dioxide|CO2"),
    ("In which year did the Second World War end?", "1945"),
    ("Which ocean is the largest?", "Pacific"),
    ("What is the longest river of Africa?", "Nile"),
    ("What do bees make?", "honey"),
)
# Their numbers have no common divisor, so that steps of one in both come to every pair.
_BEFORE = (
    "",
    "Please tell me: ",
    "Quick question: ",
    "I would like to know: ",
    "Do you know this? ",
    "Hello! ",
    "One question: ",
)
_AFTER = (
    "",
    " Answer in one sentence.",
    " Thank you.",
    " Answer briefly.",
    " I am curious.",
    " It is for a quiz.",
)


@dataclass(frozen=True, slots=True)
class Worded(Generic[T]):
    """A question in one wording, and what belongs to it."""

    text: str
    known: T


def worded(questions: Sequence[tuple[str, T]], count: int) -> list[Worded[T]]:
    """Word the questions in turn, `count` together. Raises ValueError beyond every wording."""
    if count > len(questions) * len(_BEFORE) * len(_AFTER):
        raise ValueError(f"there are fewer wordings of {len(questions)} questions than {count}")
    found = []
    for number in range(count):
        turn, place = divmod(number, len(questions))
        question, known = questions[place]
        before, after = _BEFORE[turn % len(_BEFORE)], _AFTER[turn % len(_AFTER)]
        found.append(Worded(f"{before}{question}{after}", known))
    return found
