"""Ask a small model first, and a larger one where the small one is unsure of its own tokens.

Both are behind one gateway, whose routes choose by the header `x-model-size` (routes.yaml).
Confidence is the geometric mean of the probabilities of the answer's tokens. What a good threshold
is depends on both models and on the traffic: measure it on answers that you have judged.
"""

import argparse
import functools
import math
import os
import sys
import time
from dataclasses import dataclass

from openai import OpenAI


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said, and how sure it was."""

    text: str
    num_tokens: int
    confidence: float
    """From 0 to 1."""


def of_size(gateway: str, size: str) -> OpenAI:
    """Return a client whose requests the gateway gives to the model of this size."""
    key = os.environ.get("OPENAI_API_KEY", "none")
    return OpenAI(base_url=gateway, api_key=key, default_headers={"x-model-size": size})


@functools.cache
def model(service: OpenAI) -> str:
    """Return the name of the one model that a service has."""
    return service.models.list().data[0].id


def ask(service: OpenAI, question: str) -> Answer:
    """Return the likeliest answer with its confidence."""
    answer = service.chat.completions.create(
        model=model(service),
        messages=[{"role": "user", "content": question}],
        max_tokens=32,
        temperature=0,
        logprobs=True,
    )
    choice = answer.choices[0]
    tokens = (choice.logprobs.content if choice.logprobs else None) or []
    mean = sum(each.logprob for each in tokens) / len(tokens) if tokens else -math.inf
    return Answer(choice.message.content or "", len(tokens), math.exp(mean))


def main() -> None:
    """Answer each line of standard input, and print how many the small model kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateway", required=True, metavar="URL", help="The gateway's /v1.")
    parser.add_argument("--threshold", type=float, default=0.6, help="Below it, ask the large one.")
    given = parser.parse_args()
    small, large = (of_size(given.gateway, size) for size in ("small", "large"))

    questions = [line.strip() for line in sys.stdin if line.strip()]
    num_kept = 0
    for question in questions:
        began = time.perf_counter()
        first = ask(small, question)
        is_kept = first.confidence >= given.threshold
        num_kept += is_kept
        final = first if is_kept else ask(large, question)
        took_ms = (time.perf_counter() - began) * 1e3
        name = "small" if is_kept else "large"
        print(f"{name}  {first.confidence:.2f}  {took_ms:.0f} ms  {question}")
        print(f"    {' '.join(final.text.split())}")
    print(f"{num_kept} of {len(questions)} answered by the small model")


if __name__ == "__main__":
    main()
