"""Answer a question from a file of passages: embed, rank, generate, each by its own service."""

import argparse
import functools
import os
import time
from pathlib import Path
from typing import Any

from openai import OpenAI

PROMPT = "Answer in one short sentence from this text.\n\n{text}\n\nQuestion: {question}"


@functools.cache
def model(service: OpenAI) -> str:
    """Return the name of the one model that a service has."""
    return service.models.list().data[0].id


def nearest(service: OpenAI, passages: list[str], question: str) -> list[str]:
    """Return the five passages whose embeddings are most like the question's."""
    asked = [*passages, question]
    answer = service.embeddings.create(model=model(service), input=asked, encoding_format="float")
    *vectors, wanted = (each.embedding for each in answer.data)  # of length 1
    likeness = [sum(a * b for a, b in zip(each, wanted, strict=True)) for each in vectors]
    order = sorted(range(len(passages)), key=likeness.__getitem__, reverse=True)
    return [passages[index] for index in order[:5]]


def ranked(service: OpenAI, passages: list[str], question: str) -> list[str]:
    """Order passages by how likely the question is after each, the likeliest first."""
    before = [f"{each}\nQuestion:" for each in passages]
    body = {"text_1": before, "text_2": [f" {question}"] * len(before)}
    scores: Any = service.post("/score", cast_to=object, body=body)
    best_first = sorted(scores["data"], key=lambda each: -each["score"])
    return [passages[each["index"]] for each in best_first]


def generated(service: OpenAI, passages: list[str], question: str) -> str:
    """Answer the question with these passages before it."""
    prompt = PROMPT.format(text="\n".join(passages), question=question)
    messages: Any = [{"role": "user", "content": prompt}]
    answer = service.chat.completions.create(
        model=model(service), messages=messages, max_tokens=48, temperature=0
    )
    return answer.choices[0].message.content or ""


def main() -> None:
    """Run the three steps, and say what each found and how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    for step in ("embed", "rank", "generate"):
        parser.add_argument(f"--{step}", required=True, metavar="URL", help="A service's /v1.")
    parser.add_argument("passages", type=Path, help="A file with one passage a line.")
    parser.add_argument("question")
    given = parser.parse_args()
    key = os.environ.get("OPENAI_API_KEY", "none")
    urls = (given.embed, given.rank, given.generate)
    embed, rank, generate = (OpenAI(base_url=url, api_key=key) for url in urls)

    began = time.perf_counter()
    near = nearest(embed, given.passages.read_text().splitlines(), given.question)
    embedded = time.perf_counter()
    best = ranked(rank, near, given.question)[:2]
    ordered = time.perf_counter()
    answer = generated(generate, best, given.question)
    ended = time.perf_counter()

    print("\n".join(f"passage: {each}" for each in best))
    print(f"answer: {answer}")
    spans = {"embed": embedded - began, "rank": ordered - embedded, "generate": ended - ordered}
    print(", ".join(f"{step} {span * 1e3:.0f} ms" for step, span in spans.items()))


if __name__ == "__main__":
    main()
