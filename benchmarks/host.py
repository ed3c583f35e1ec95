"""What one step costs on the host: scheduling, settling and recording, without a model.

`python benchmarks/host.py` prints a line per number of running sequences: the median and the 99th
percentile of a decode step's host time, with the fitted pacer asked in every step.
"""

import argparse
import statistics
import time

from paceline_engine.engine import Engine
from paceline_engine.limits import Capacity, Limits
from paceline_engine.pacing import make_pacer
from paceline_engine.scheduling.batch import Batch
from paceline_engine.wire import ModelInfo, Sampling, Submit

BLOCK_SIZE = 16
PROMPT_TOKENS = 256
WARM_UP_STEPS = 50


class InstantRunner:
    """Answers token 1 at once."""

    def run(self, batch: Batch) -> list[int | None]:
        """Sample where sampling is wanted."""
        return [1 if piece.samples else None for piece in batch.slices]


def an_info(max_model_len: int) -> ModelInfo:
    """Describe a model of a common size on a GPU."""
    return ModelInfo(
        name="none",
        family="llama",
        revision="",
        dtype="bfloat16",
        device="cuda",
        num_parameters=1_000_000_000,
        vocab_size=32_000,
        max_model_len=max_model_len,
        bos_token_id=None,
        eos_token_ids=[2],
        kv_bytes_per_token=32_768,
        weight_bytes=2_000_000_000,
    )


def decode_host_ms(running: int, steps: int) -> list[float]:
    """Measure the host time of `steps` decode steps with `running` sequences."""
    max_model_len = PROMPT_TOKENS + WARM_UP_STEPS + steps + BLOCK_SIZE
    capacity = Capacity(
        max_batch_size=running,
        max_token_budget=8192,
        num_blocks=running * -(-max_model_len // BLOCK_SIZE) + running,
        block_size=BLOCK_SIZE,
        max_model_len=max_model_len,
    )
    info = an_info(max_model_len)
    engine = Engine(
        InstantRunner(),
        info,
        capacity,
        make_pacer(info, capacity),
        limits=Limits(running, 8192, step_target_ms=20.0, pace_tpot_ms=20.0),
        clock=time.perf_counter,
    )
    for number in range(running):
        prompt = [(number * 7 + position) % 32_000 for position in range(PROMPT_TOKENS)]
        engine.submit(Submit(str(number), prompt, Sampling(max_tokens=WARM_UP_STEPS + steps)))
    while len(engine.scheduler.decoding) < running:
        engine.step()
    for _ in range(WARM_UP_STEPS // 2):
        engine.step()
    engine.log.take()
    host_ms = []
    for _ in range(steps):
        if len(engine.scheduler.decoding) < running:
            break
        started = time.perf_counter()
        engine.step()
        host_ms.append((time.perf_counter() - started) * 1e3)
    return host_ms


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    print(f"{'running':>8} {'median ms':>10} {'p99 ms':>8} {'us/row':>7}")
    for running in arguments.running:
        host_ms = decode_host_ms(running, arguments.steps)
        median = statistics.median(host_ms)
        p99 = statistics.quantiles(host_ms, n=100)[98]
        print(f"{running:>8} {median:>10.3f} {p99:>8.3f} {median * 1e3 / running:>7.2f}")


if __name__ == "__main__":
    main()
