"""Speculative decoding on and off, on the same requests: repetitive text and prose, at every load.

The embedded model, greedy, end tokens ignored. Both engines live in this process and take turns;
each has a step model of its own, fitted from its own steps in a run that is not counted. Ratios
are medians of the pairs.

    python benchmarks/speculation.py --repeats 5
    python benchmarks/speculation.py --method draft
    python benchmarks/speculation.py --method draft --draft-layers 4

No smaller model of this vocabulary can be had offline. The draft model is the model itself in a
byte a weight, or what its first layers alone make of a text (`resized_model.py`).
"""

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer

from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.checkpoint.hub import Hub
from paceline_engine.checkpoint.uri import Places, locate
from paceline_engine.drafting.draft_model import DraftModel
from paceline_engine.drafting.proposer import Proposer
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.pacing import make_pacer
from paceline_engine.settings import Quantization, Settings
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits
from resized_model import write_with_layers

RESULTS = Path(__file__).parent / "results" / "cpu"
REPETITIVE = (
    "Copy the table.\n"
    + "".join(f"| row {i} | name: item {i} | price: 10 | in stock: yes |\n" for i in range(1, 9))
    + "RecomputeCapture:\n| row 1 |"
)
PROSE = (
    "The old harbour town had changed little in a hundred years. Fishermen still mended their"
    " nets by the sea wall, and in the evening the smell of bread came up from the lower street."
    " One autumn a stranger arrived on the last ferry and asked for the house of the clockmaker."
)
LOADS = (1, 2, 4, 8, 16)
"""Requests at a time."""


@dataclass(frozen=True)
class Outcome:
    """One run of one engine."""

    tokens_per_s: float
    drafted: int
    accepted: int


def model_for(method: str, quantization: Quantization, draft_layers: int | None) -> LoadedModel:
    """Load the model and, if asked for, a draft model made of it or of its first layers."""
    if method == "ngram":
        return load_model(Settings(device="cpu"), lambda _stage, _fraction: None)
    settings = Settings(
        device="cpu",
        speculative="draft",
        draft_model_uri=Settings().model_uri,
        draft_quantization=quantization,
    )
    if draft_layers is None:
        return load_model(settings, lambda _stage, _fraction: None)
    with tempfile.TemporaryDirectory() as folder:
        settings = settings.model_copy(update={"draft_model_uri": f"file://{folder}"})
        places = Places(None, settings.model_mount, Hub(settings.cache_dir, None))
        path = locate(settings.model_uri, None, places).path
        write_with_layers(open_checkpoint(path), draft_layers, Path(folder))
        return load_model(settings, lambda _stage, _fraction: None)


def proposer_of(model: LoadedModel) -> Proposer | None:
    """Make the draft model's proposer as the engine's process does; None without a draft model."""
    if model.draft is None:
        return None
    pacer = make_pacer(model.draft.info, model.capacity)
    proposer = DraftModel(model.draft.runner, pacer, model.capacity, time.perf_counter)
    proposer.warm_up()
    return proposer


def engine_of(model: LoadedModel, draft_tokens: int) -> Engine:
    """Make a new engine over the model's memory; engines of one model run one after the other."""
    limits = Limits(max_batch_size=max(LOADS), token_budget=model.capacity.max_token_budget)
    return Engine(
        model.runner,
        model.info,
        model.capacity,
        make_pacer(model.info, model.capacity),
        limits=limits,
        clock=time.perf_counter,
        options=EngineOptions(
            prefix_caching=False,
            draft_tokens=draft_tokens,
            proposer=proposer_of(model) if draft_tokens else None,
        ),
    )


def run(engine: Engine, prompts: list[list[int]], load: int, output_tokens: int) -> Outcome:
    """Keep `load` requests in the engine until every prompt is answered."""
    sampling = Sampling(max_tokens=output_tokens, temperature=0.0, ignore_eos=True)
    before = engine.load()
    waiting = [
        Submit(f"{before.output_tokens}-{i}", ids, sampling) for i, ids in enumerate(prompts)
    ]
    started = time.perf_counter()
    for submit in waiting[:load]:
        engine.submit(submit)
    del waiting[:load]
    while not engine.is_idle:
        for output in engine.step():
            assert output.error is None, output.error
            if output.finish is not None and waiting:
                engine.submit(waiting.pop(0))
    seconds = time.perf_counter() - started
    after = engine.load()
    return Outcome(
        tokens_per_s=(after.output_tokens - before.output_tokens) / seconds,
        drafted=after.draft_tokens - before.draft_tokens,
        accepted=after.accepted_tokens - before.accepted_tokens,
    )


def prompts_of(text: str, count: int, tokenizer: Tokenizer) -> list[list[int]]:
    """Return the text, with a different beginning for each request."""
    return [tokenizer.encode(f"{index}. {text}").ids for index in range(count)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--method", choices=("ngram", "draft"), default="ngram")
    parser.add_argument("--draft-quantization", choices=("none", "int8", "fp8"), default="int8")
    parser.add_argument("--draft-layers", type=int, help="only so many, untrained after the cut")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--draft-tokens", type=int, default=8)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--loads", type=int, nargs="*", default=list(LOADS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def main() -> None:
    """Measure every text at every load, print the table and write it."""
    arguments = _arguments()
    model = model_for(arguments.method, arguments.draft_quantization, arguments.draft_layers)
    with tempfile.TemporaryDirectory() as folder:
        model.write_tokenizer(Path(folder))
        tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    engines = {"off": engine_of(model, 0), "on": engine_of(model, arguments.draft_tokens)}
    rows = []
    for text_name, text in (("repetitive", REPETITIVE), ("prose", PROSE)):
        for load in arguments.loads:
            prompts = prompts_of(text, 2 * load, tokenizer)
            for engine in engines.values():
                run(engine, prompts, load, arguments.output_tokens)
            pairs = []
            for repeat in range(arguments.repeats):
                order = list(engines) if repeat % 2 else list(engines)[::-1]
                found = {
                    name: run(engines[name], prompts, load, arguments.output_tokens)
                    for name in order
                }
                pairs.append(found)
            rows.append(_row(text_name, load, pairs))
            print(rows[-1], flush=True)
    table = _table(rows)
    print(table)
    arguments.results.mkdir(parents=True, exist_ok=True)
    is_lookup = arguments.method == "ngram"
    name = "speculation" if is_lookup else "speculation-draft"
    drafted_by = "by prompt lookup" if is_lookup else _draft_words(arguments)
    (arguments.results / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")
    (arguments.results / f"{name}.md").write_text(
        "# Speculative decoding on a CPU\n\n"
        f"SmolLM2-135M-Instruct, {model.info.dtype}, greedy,"
        f" {arguments.output_tokens} output tokens, drafts of {arguments.draft_tokens} tokens at"
        f" most {drafted_by}; medians of {arguments.repeats} interleaved pairs.\n\n{table}\n\n"
        "Made by `python benchmarks/speculation.py"
        f"{'' if is_lookup else ' --method draft'}`.\n"
    )


def _draft_words(arguments: argparse.Namespace) -> str:
    layers, to = arguments.draft_layers, arguments.draft_quantization
    whose = "the model itself" if layers is None else f"the model's own first {layers} layers"
    return f"by {whose}" + ("" if to == "none" else f" in {to.upper()}")


def _row(text: str, load: int, pairs: list[dict[str, Outcome]]) -> dict[str, object]:
    ratios = sorted(pair["on"].tokens_per_s / pair["off"].tokens_per_s for pair in pairs)
    drafted = sum(pair["on"].drafted for pair in pairs)
    return {
        "text": text,
        "load": load,
        "off_tokens_per_s": statistics.median(pair["off"].tokens_per_s for pair in pairs),
        "on_tokens_per_s": statistics.median(pair["on"].tokens_per_s for pair in pairs),
        "ratio": statistics.median(ratios),
        "lowest": ratios[0],
        "highest": ratios[-1],
        "drafted": drafted,
        "accepted": sum(pair["on"].accepted for pair in pairs) / max(drafted, 1),
        "runs": [{name: asdict(one) for name, one in pair.items()} for pair in pairs],
    }


def _table(rows: list[dict[str, object]]) -> str:
    lines = [
        "| Text | at a time | off, tok/s | on, tok/s | on / off | range | drafts accepted |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['text']} | {row['load']} | {row['off_tokens_per_s']:.1f}"
        f" | {row['on_tokens_per_s']:.1f} | {row['ratio']:.2f}"
        f" | {row['lowest']:.2f} to {row['highest']:.2f}"
        f" | {row['accepted']:.0%} of {row['drafted']} |"
        for row in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
