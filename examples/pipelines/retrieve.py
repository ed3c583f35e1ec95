"""Answer a question from a file of passages: embed, rank, generate, each by a service of its own.

Each service batches for itself and keeps its own p99; what they share is this file.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from openai import BaseModel, OpenAI

PROMPT = "Answer in one short sentence from this text.\n\n{text}\n\nQuestion: {question}"


class Score(BaseModel):
    """The log-likelihood of `text_2` after `text_1`."""

    index: int
    score: float


class Scores(BaseModel):
    """The answer of `/v1/score`."""

    data: list[Score]


def nearest(service: OpenAI, passages: Sequence[str], question: str, count: int) -> list[str]:
    """Return the passages whose embeddings are nearest to the question's, by dot product."""
    asked = [*passages, question]
    answer = service.embeddings.create(model="", input=asked, encoding_format="float")
    *vectors, wanted = (each.embedding for each in answer.data)
    products = [sum(a * b for a, b in zip(each, wanted, strict=True)) for each in vectors]
    order = sorted(range(len(passages)), key=products.__getitem__, reverse=True)
    return [passages[index] for index in order[:count]]


def ranked(service: OpenAI, passages: Sequence[str], question: str) -> list[str]:
    """Order passages by how likely the question is after each of them, the likeliest first."""
    body = {"text_1": [f"{each}\nQuestion:" for each in passages], "text_2": [f" {question}"]}
    body["text_2"] *= len(passages)
    answer = service.post("/score", cast_to=Scores, body=body)
    best_first = sorted(answer.data, key=lambda each: each.score, reverse=True)
    return [passages[each.index] for each in best_first]


def generated(service: OpenAI, passages: Sequence[str], question: str) -> str:
    """Return an answer that has these passages before it."""
    content = PROMPT.format(text="\n".join(passages), question=question)
    answer = service.chat.completions.create(
        model="", messages=[{"role": "user", "content": content}], max_tokens=48, temperature=0
    )
    return answer.choices[0].message.content or ""


def main() -> None:
    """Run the three steps and print what each found, and how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    for step in ("embed", "rank", "generate"):
        parser.add_argument(f"--{step}", required=True, metavar="URL", help="A service's /v1.")
    parser.add_argument("--key", default="none", help="An API key of the services.")
    parser.add_argument("passages", type=Path, help="A file with one passage a line.")
    parser.add_argument("question")
    given = parser.parse_args()
    embed, rank, generate = (
        OpenAI(base_url=url, api_key=given.key) for url in (given.embed, given.rank, given.generate)
    )

    times = [time.perf_counter()]
    near = nearest(embed, given.passages.read_text().splitlines(), given.question, count=5)
    times.append(time.perf_counter())
    best = ranked(rank, near, given.question)[:2]
    times.append(time.perf_counter())
    text = generated(generate, best, given.question)
    times.append(time.perf_counter())

    for passage in best:
        print(f"passage: {passage}")
    print(f"answer: {text}")
    for step, begin, end in zip(("embed", "rank", "generate"), times, times[1:], strict=False):
        print(f"{step}: {(end - begin) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
