"""One peer in a process of its own: prompts come as a line of JSON, timelines go back as one.

Every peer in Python is driven by this loop: so many requests at a time, a new one when one has
finished, and a token is timed when the peer's step that made it has returned.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from typing import Protocol

from peers.setup import Identity, Refused, Setup
from serving_workload import Run, Timeline, Workload


class Peer(Protocol):
    """An engine that is driven step by step."""

    @property
    def identity(self) -> Identity:
        """Return the engine's version and the precision that it computes in."""
        ...

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


def serve_peer(make: Callable[[Setup], Peer]) -> None:
    """Make the peer that this process's argument asks for, and answer until the input ends."""

    def start(setup: Setup) -> tuple[Identity, Run]:
        peer = make(setup)
        return peer.identity, partial(run, peer)

    serve(start)


def serve(start: Callable[[Setup], tuple[Identity, Run]]) -> None:
    """Start an engine, tell what runs, then answer every line on standard input until it ends."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    with os.fdopen(answers, "w", encoding="utf-8") as out:
        try:
            identity, answer = start(Setup.from_arguments())
        except Refused as refusal:
            print(json.dumps({"refused": str(refusal)}), file=out, flush=True)
            return
        print(json.dumps({"ready": asdict(identity)}), file=out, flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            timelines = answer(order["prompts"], Workload(**order["workload"]))
            print(json.dumps([asdict(line) for line in timelines]), file=out, flush=True)
