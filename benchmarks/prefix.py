"""TTFT behind a shared system prompt: what prefix caching saves, in this process, on this machine.

Each repeat has a system prompt of its own of 1,000 random tokens and two requests that add 24 of
their own: the first computes the system prompt, the second finds it.

    python benchmarks/prefix.py --repeats 5
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path

from paceline_engine.engine.engine import Engine
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.settings import Settings
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits
from serving_workload import FIRST_PLAIN_TOKEN, VOCAB

RESULTS = Path(__file__).parent / "results" / "cpu"
SYSTEM_TOKENS = 1000
OWN_TOKENS = 24


def ttft_ms(engine: Engine, id_: str, prompt: list[int]) -> tuple[float, int]:
    """Milliseconds to the first token, and the prompt tokens found in the cache."""
    started = time.perf_counter()
    engine.submit(Submit(id_, prompt, Sampling(max_tokens=1, temperature=0.0, ignore_eos=True)))
    while True:
        for output in engine.step():
            assert output.error is None, output.error
            return 1e3 * (time.perf_counter() - started), output.cached_tokens


def measure(model: LoadedModel, repeats: int) -> list[dict[str, float]]:
    """TTFT of the first and of the second request of each repeat."""
    engine = Engine(
        model.runner,
        model.info,
        model.capacity,
        NoPacer(),
        limits=Limits(8, model.capacity.max_token_budget),
        clock=time.perf_counter,
    )
    source = random.Random(1)

    def tokens(count: int) -> list[int]:
        return [source.randrange(FIRST_PLAIN_TOKEN, VOCAB) for _ in range(count)]

    rows = []
    for repeat in range(repeats + 1):
        system = tokens(SYSTEM_TOKENS)
        first_ms, _ = ttft_ms(engine, f"{repeat}-first", system + tokens(OWN_TOKENS))
        second_ms, found = ttft_ms(engine, f"{repeat}-second", system + tokens(OWN_TOKENS))
        if repeat:  # the first round warms up
            rows.append({"first_ms": first_ms, "second_ms": second_ms, "found_tokens": found})
    return rows


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    model = load_model(Settings(device="cpu"), lambda _stage, _fraction: None)
    rows = measure(model, arguments.repeats)
    ratios = [row["first_ms"] / row["second_ms"] for row in rows]
    first, second = (
        statistics.median(row[name] for row in rows) for name in ("first_ms", "second_ms")
    )
    text = (
        "# Prefix caching on a CPU\n\n"
        f"SmolLM2-135M-Instruct, float32; a system prompt of {SYSTEM_TOKENS:,} tokens and"
        f" {OWN_TOKENS} of each request; medians of {len(rows)} pairs.\n\n"
        "| TTFT of the first | of the second | ratio (range) | found |\n|---|---|---|---|\n"
        f"| {first:,.0f} ms | {second:,.0f} ms | {statistics.median(ratios):.1f}"
        f" ({min(ratios):.1f} to {max(ratios):.1f}) | {rows[-1]['found_tokens']:,.0f} tokens |\n\n"
        "Made by `python benchmarks/prefix.py`.\n"
    )
    print(text)
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "prefix.md").write_text(text)
    (arguments.results / "prefix.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
