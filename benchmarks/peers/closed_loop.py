"""One peer in a process of its own: prompts come as a line of JSON, timelines go back as one.

Every peer is driven by this loop: so many requests at a time, a new one when one has finished, and
a token is timed when the peer's step that made it has returned.
"""

import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Protocol

from serving_workload import Timeline, Workload


class Peer(Protocol):
    """An engine that is driven step by step."""

    def send(self, number: int, prompt: list[int], output_tokens: int) -> None:
        """Queue a request: greedy, end tokens ignored."""
        ...

    def step(self) -> Iterable[tuple[int, int]]:
        """Run one step; return which requests got how many tokens."""
        ...


def run(peer: Peer, prompts: list[list[int]], workload: Workload) -> list[Timeline]:
    """Send every prompt, `workload.concurrency` at a time."""
    sent: list[float] = []
    tokens: list[list[float]] = []

    def send() -> None:
        number = len(sent)
        sent.append(time.perf_counter())
        tokens.append([])
        peer.send(number, prompts[number], workload.output_tokens)

    for _ in range(min(workload.concurrency, len(prompts))):
        send()
    unfinished = len(prompts)
    while unfinished:
        made = list(peer.step())
        now = time.perf_counter()
        for number, count in made:
            tokens[number] += [now] * count
            if count and len(tokens[number]) == workload.output_tokens:
                unfinished -= 1
                if len(sent) < len(prompts):
                    send()
    return [Timeline(start, tuple(times)) for start, times in zip(sent, tokens, strict=True)]


def take_stdout() -> int:
    """Keep the pipe for answers; what libraries print goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


def serve(peer: Peer, answers: int) -> None:
    """Print that the peer is ready, then answer every line on standard input until it ends."""
    with os.fdopen(answers, "w", encoding="utf-8") as out:
        print(json.dumps("ready"), file=out, flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            workload = Workload(**order["workload"])
            timelines = run(peer, order["prompts"], workload)
            print(json.dumps([asdict(line) for line in timelines]), file=out, flush=True)
