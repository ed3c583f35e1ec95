"""Run tens of thousands of requests through one engine, to find what grows.

    python benchmarks/soak.py --requests 50000

The model does nothing, so only our code counts: scheduler, blocks, prefix cache, pacer, records.
Requests arrive in bursts, share prefixes, differ in length, and one in twenty is cancelled. Memory
of the process and blocks in use are sampled and plotted. At the end no block may be held, and the
memory must not have grown by more than 2 % over the second half; else the exit status is 1.
"""

import argparse
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from host import InstantRunner, an_info
from paceline_engine.engine.engine import Engine
from paceline_engine.pacing import make_pacer
from paceline_engine.process.collector import QuietCollector
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Capacity, Limits

RESULTS = Path(__file__).parent / "results" / "cpu"
MAX_GROWTH = 0.02
CAPACITY = Capacity(
    max_batch_size=64, max_token_budget=2048, num_blocks=2048, block_size=16, max_model_len=1024
)
SAMPLES = 500


@dataclass(frozen=True)
class Sample:
    """Memory and blocks after a number of finished requests."""

    finished: int
    rss_mib: float
    blocks_used: int
    blocks_cached: int


def rss_mib() -> float:
    """Return the memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


def a_submit(source: random.Random, number: int, prefixes: list[list[int]]) -> Submit:
    """Return one of a few prefixes, then tokens of its own."""
    own = [source.randrange(32_000) for _ in range(source.randint(1, 300))]
    sampling = Sampling(max_tokens=source.randint(1, 48), ignore_eos=True)
    return Submit(str(number), source.choice(prefixes) + own, sampling, arrived_at=time.monotonic())


def soak(requests: int) -> tuple[list[Sample], int]:
    """Samples over the run, and the blocks that are still held at its end."""
    source = random.Random(7)
    prefixes = [[source.randrange(32_000) for _ in range(n)] for n in (0, 0, 64, 200, 512)]
    info = an_info(CAPACITY.max_model_len)
    engine = Engine(
        InstantRunner(),
        info,
        CAPACITY,
        make_pacer(info, CAPACITY),
        limits=Limits(CAPACITY.max_batch_size, CAPACITY.max_token_budget),
        clock=time.monotonic,
    )
    samples: list[Sample] = []
    sent = finished = steps = 0
    collector = QuietCollector()
    try:
        while finished < requests:
            if engine.requests.num_waiting < 64:
                for _ in range(min(source.randint(1, 64), requests - sent)):
                    engine.submit(a_submit(source, sent, prefixes))
                    if source.random() < 0.05:
                        engine.abort([str(source.randint(max(0, sent - 64), sent))])
                    sent += 1
            finished += sum(output.finish is not None for output in engine.step())
            steps += 1
            if steps % 50 == 0:  # as the telemetry's heartbeat does
                engine.log.take()
                engine.load()
            if finished >= len(samples) * requests / SAMPLES:
                pool = engine.requests.blocks.pool
                samples.append(Sample(finished, rss_mib(), pool.num_used, pool.num_cached))
    finally:
        collector.close()
    return samples, engine.requests.blocks.pool.num_used


def growth(samples: list[Sample]) -> float:
    """By how much the last tenth's memory is above that of the tenth after the middle."""
    tenth = len(samples) // 10
    middle = [sample.rss_mib for sample in samples[5 * tenth : 6 * tenth]]
    last = [sample.rss_mib for sample in samples[-tenth:]]
    return (sum(last) / len(last)) / (sum(middle) / len(middle)) - 1


def plot(samples: list[Sample], path: Path) -> None:
    """Plot memory above, blocks below."""
    import matplotlib as mpl  # noqa: PLC0415 - a second to import
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    figure = Figure(figsize=(8, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    finished = [sample.finished for sample in samples]
    above.plot(finished, [sample.rss_mib for sample in samples])
    above.set_ylabel("RSS, MiB")
    above.set_ylim(bottom=0)
    below.plot(finished, [sample.blocks_used for sample in samples], label="held")
    below.plot(finished, [sample.blocks_cached for sample in samples], label="free, cached")
    below.set_ylabel("KV blocks")
    below.set_xlabel("requests finished")
    below.legend()
    # Neither a date nor random names of its parts: the same samples give the same bytes.
    with mpl.rc_context({"svg.hashsalt": "paceline"}):
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Run, write the results, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    samples, held = soak(arguments.requests)
    grown = growth(samples)
    arguments.results.mkdir(parents=True, exist_ok=True)
    plot(samples, arguments.results / "soak.svg")
    record = {
        "requests": arguments.requests,
        "growth_of_second_half": grown,
        "held_at_end": held,
        "samples": [asdict(sample) for sample in samples[:: len(samples) // 50]],
    }
    (arguments.results / "soak.json").write_text(json.dumps(record, indent=1) + "\n")
    print(
        f"{arguments.requests:,} requests: {samples[-1].rss_mib:.1f} MiB at the end, "
        f"{grown:+.2%} over the second half; {held} blocks held"
    )
    sys.exit(held > 0 or grown > MAX_GROWTH)


if __name__ == "__main__":
    main()
