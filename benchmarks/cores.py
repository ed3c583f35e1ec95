"""Our engine on one core and on two, and a model of more: tokens a second of decodes and prompts.

Three kinds of steps of the embedded model, each timed by itself: one decode, 16 decodes, and a
prompt of 512 tokens. The best of several is taken, because whatever else runs only slows a step.
Figures beyond the measured cores are a model (`core_scaling.py`), for a machine whose memory gives
`--gbps`.

    python benchmarks/cores.py --dtype auto --gbps 300
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

import torch

from core_scaling import Point, Scaling
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.settings import Settings
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits

FIRST_PLAIN_TOKEN: Final = 17  # those before are special
STREAMS: Final = (1, 16)
CONTEXT: Final = 64
PROMPT: Final = 512
CORES: Final = (4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Measured:
    """The shortest step of each kind on so many cores, in seconds."""

    threads: int
    dtype: str
    reason: str
    gbps: float
    """Bandwidth of memory that these threads reach."""
    weight_bytes: int
    kv_bytes_per_token: int
    alone_s: float
    batch_s: float
    prompt_s: float


def measure(threads: int, dtype: str, quantization: str, repeats: int) -> Measured:
    """Load the embedded model and time its steps in this process."""
    settings = Settings.model_validate(
        {"device": "cpu", "threads": threads, "dtype": dtype, "quantization": quantization}
    )
    model = load_model(settings, lambda _stage, _fraction: None)
    source = random.Random(0)
    alone_s, batch_s = (_decode_s(model, streams, repeats, source) for streams in STREAMS)
    info = model.info
    return Measured(
        threads,
        info.dtype,
        info.dtype_reason,
        _gbps(),
        info.weight_bytes,
        info.kv_bytes_per_token,
        alone_s,
        batch_s,
        min(_prompt_s(model, source) for _ in range(max(3, repeats // 10))),
    )


def _gbps() -> float:
    """Read 512 MiB, which no cache holds, with torch's threads: the engine's own."""
    memory = torch.ones(128 << 20)
    memory.sum()
    return memory.nbytes / min(_timed(memory.sum) for _ in range(9)) / 1e9


def _engine(model: LoadedModel) -> Engine:
    return Engine(
        model.runner,
        model.info,
        model.capacity,
        NoPacer(),
        limits=Limits(max_batch_size=max(STREAMS), token_budget=max(STREAMS) * CONTEXT),
        clock=time.perf_counter,
        options=EngineOptions(prefix_caching=False),
    )


def _prompt(model: LoadedModel, length: int, source: random.Random) -> list[int]:
    return [source.randrange(FIRST_PLAIN_TOKEN, model.info.vocab_size) for _ in range(length)]


def _decode_s(model: LoadedModel, streams: int, repeats: int, source: random.Random) -> float:
    """Time steps in which every stream gets one token."""
    engine = _engine(model)
    sampling = Sampling(max_tokens=repeats + 1, temperature=0.0, ignore_eos=True)
    for number in range(streams):
        engine.submit(Submit(str(number), _prompt(model, CONTEXT, source), sampling))
    engine.step()  # all prompts
    return min(_timed(engine.step) for _ in range(repeats))


def _prompt_s(model: LoadedModel, source: random.Random) -> float:
    engine = _engine(model)
    sampling = Sampling(max_tokens=1, temperature=0.0, ignore_eos=True)
    engine.submit(Submit("prompt", _prompt(model, PROMPT, source), sampling))
    return _timed(engine.step)


def _timed(step: Callable[[], object]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def _in_own_process(threads: int, arguments: argparse.Namespace) -> Measured:
    """OpenMP keeps the threads that it once had: each count begins afresh."""
    options = ("--dtype", arguments.dtype, "--quantization", arguments.quantization)
    command = [sys.executable, __file__, "--only", str(threads), *options]
    ended = subprocess.run(
        [*command, "--repeats", str(arguments.repeats)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return Measured(**json.loads(ended.stdout))


def best(rounds: Sequence[Measured]) -> Measured:
    """Take the best of every figure: virtual cores may share a real one for minutes."""
    return replace(
        rounds[0],
        gbps=max(each.gbps for each in rounds),
        alone_s=min(each.alone_s for each in rounds),
        batch_s=min(each.batch_s for each in rounds),
        prompt_s=min(each.prompt_s for each in rounds),
    )


def _scalings(one: Measured, two: Measured) -> dict[str, Scaling]:
    """Return each kind of step on both counts of cores."""
    weights, kv = one.weight_bytes, one.kv_bytes_per_token
    batch = STREAMS[1]

    def scaling(one_s: float, two_s: float, num_bytes: int, tokens: int) -> Scaling:
        return Scaling(Point(one_s, one.gbps), Point(two_s, two.gbps), num_bytes, tokens)

    return {
        "decode, 1 stream": scaling(one.alone_s, two.alone_s, weights + CONTEXT * kv, 1),
        f"decode, {batch} streams": scaling(
            one.batch_s, two.batch_s, weights + batch * CONTEXT * kv, batch
        ),
        "prefill": scaling(one.prompt_s, two.prompt_s, weights, PROMPT),
    }


def table(scalings: dict[str, Scaling], gbps: float) -> str:
    """Write tokens a second as Markdown; a star marks what the memory bounds."""
    heads = ["tok/s", "1 core", "2 cores", *(f"{cores} cores (model)" for cores in CORES)]
    rows = [heads, ["---", *("---:" for _ in heads[1:])]]
    for name, each in scalings.items():
        modelled = [
            f"{each.tokens_per_s(cores, gbps):,.0f}"
            + ("*" if each.is_bound_by_memory(cores, gbps) else "")
            for cores in CORES
        ]
        measured = [
            f"{each.tokens / seconds:,.0f}" for seconds in (each.one.seconds, each.two.seconds)
        ]
        rows.append([name, *measured, *modelled])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Measure one core and two, and print both beside the model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", default="auto", help="as PACELINE_ENGINE_DTYPE")
    parser.add_argument("--quantization", default="none", help="as PACELINE_ENGINE_QUANTIZATION")
    parser.add_argument("--repeats", type=int, default=60, help="decode steps of each kind")
    parser.add_argument(
        "--gbps", type=float, default=300.0, help="memory of the modelled machine, GB/s"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of one core and two in turn")
    parser.add_argument("--only", type=int, help="threads: print what they measured as JSON")
    arguments = parser.parse_args()
    if arguments.only is not None:
        options = (arguments.dtype, arguments.quantization, arguments.repeats)
        print(json.dumps(asdict(measure(arguments.only, *options))))
        return
    rounds = [
        [_in_own_process(threads, arguments) for threads in (1, 2)] for _ in range(arguments.rounds)
    ]
    one, two = (best(each) for each in zip(*rounds, strict=True))
    print(table(_scalings(one, two), arguments.gbps))
    print(f"\n{two.dtype}: {two.reason}.")
    print(
        f"1 and 2 cores are measured, which read {one.gbps:.0f} and {two.gbps:.0f} GB/s. More are "
        "a model: each core reads as much as one does here, up to "
        f"{arguments.gbps:g} GB/s of memory (*), and Amdahl's law through both for the rest."
    )


if __name__ == "__main__":
    main()
