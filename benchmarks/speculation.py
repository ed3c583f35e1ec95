"""Speculative decoding on and off, on the same requests: texts and JSON, at every load.

The embedded model, greedy, end tokens ignored. Both engines live in this process and take turns;
each has a step model of its own, fitted from its own steps in a run that is not counted. Ratios
are medians of the pairs.

    python benchmarks/speculation.py --repeats 5
    python benchmarks/speculation.py --texts json "json, forced alone" --loads 1 8 16
    python benchmarks/speculation.py --method draft
    python benchmarks/speculation.py --method draft --draft-layers 4

No smaller model of this vocabulary can be had offline. The draft model is the model itself in a
byte a weight, or what its first layers alone make of a text (`resized_model.py`).

JSON follows a schema, whose grammar forces some of the tokens: by lookup and what is forced, and by
what is forced alone, as without speculative decoding. It ends where it is complete. Rows of texts
that are not measured stay as they are in the table.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.checkpoint.hub import Hub
from paceline_engine.checkpoint.uri import Places, locate
from paceline_engine.core.constraint import Constraint
from paceline_engine.drafting.draft_model import DraftModel
from paceline_engine.drafting.guided import FORCED_TOKENS
from paceline_engine.drafting.proposer import Proposer
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.grammar.grammar import Grammars
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.pacing import make_pacer
from paceline_engine.settings import Quantization, Settings
from paceline_wire import Grammar, Sampling, Submit
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
ORDER = (
    "<|im_start|>user\nOrder {number}: Maria Lopez from Lisbon bought two lamps and a wooden chair,"
    " by express delivery, and they have arrived. Write the order as JSON.<|im_end|>\n"
    "<|im_start|>assistant\n"
)
PRODUCT = {
    "type": "object",
    "properties": {
        "product_name": {"type": "string", "maxLength": 24},
        "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["product_name", "quantity"],
    "additionalProperties": False,
}
FIELDS = {
    "order_number": {"type": "integer", "minimum": 0, "maximum": 9999},
    "customer_name": {"type": "string", "maxLength": 24},
    "city": {"type": "string", "maxLength": 24},
    "ordered_products": {"type": "array", "items": PRODUCT, "minItems": 2, "maxItems": 2},
    "shipping_method": {"enum": ["express delivery", "standard delivery"]},
    "has_arrived": {"type": "boolean"},
}
SCHEMA = {
    "type": "object",
    "properties": FIELDS,
    "required": list(FIELDS),
    "additionalProperties": False,
}
FORM = Grammar("json_schema", json.dumps(SCHEMA))
JSON_TOKENS = 160
LOADS = (1, 2, 4, 8, 16)
"""Requests at a time."""


@dataclass(frozen=True)
class Case:
    """A text, and what drafts of its answers."""

    text: str
    is_json: bool = False
    guesses: bool = True
    """Whether drafts are guessed too, or only what a grammar forces is drafted."""


CASES = {
    "repetitive": Case(REPETITIVE),
    "prose": Case(PROSE),
    "json": Case(ORDER, is_json=True),
    "json, forced alone": Case(ORDER, is_json=True, guesses=False),
}


@dataclass(frozen=True)
class Outcome:
    """One run of one engine."""

    tokens_per_s: float
    drafted: int
    accepted: int
    steps: int


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


def engine_of(model: LoadedModel, draft_tokens: int, *, forces: bool) -> Engine:
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
            forced_tokens=FORCED_TOKENS if forces else 0,
            proposer=proposer_of(model) if draft_tokens else None,
        ),
    )


def run(
    engine: Engine,
    prompts: list[list[int]],
    load: int,
    sampling: Sampling,
    constraint: Callable[[], Constraint] | None,
) -> Outcome:
    """Keep `load` requests in the engine until every prompt is answered."""
    before, steps_before = engine.load(), engine.counters.steps
    waiting = [
        (
            Submit(f"{before.output_tokens}-{i}", ids, sampling),
            None if constraint is None else constraint(),
        )
        for i, ids in enumerate(prompts)
    ]
    started = time.perf_counter()
    for submit, form in waiting[:load]:
        engine.submit(submit, form)
    del waiting[:load]
    while not engine.is_idle:
        for output in engine.step():
            assert output.error is None, output.error
            if output.finish is not None and waiting:
                engine.submit(*waiting.pop(0))
    seconds = time.perf_counter() - started
    after = engine.load()
    return Outcome(
        tokens_per_s=(after.output_tokens - before.output_tokens) / seconds,
        drafted=after.draft_tokens - before.draft_tokens,
        accepted=after.accepted_tokens - before.accepted_tokens,
        steps=engine.counters.steps - steps_before,
    )


def prompts_of(text: str, count: int, tokenizer: Tokenizer) -> list[list[int]]:
    """Return the text, different for each request: its beginning, or where it says a number."""
    if "{number}" in text:
        return [tokenizer.encode(text.format(number=100 + index)).ids for index in range(count)]
    return [tokenizer.encode(f"{index}. {text}").ids for index in range(count)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--method", choices=("ngram", "draft"), default="ngram")
    parser.add_argument("--draft-quantization", choices=("none", "int8", "fp8"), default="int8")
    parser.add_argument("--draft-layers", type=int, help="only so many, untrained after the cut")
    parser.add_argument("--texts", nargs="*", choices=CASES, default=list(CASES))
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
        model.tokenizer.write(Path(folder))
        tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        grammars = Grammars(
            Path(folder) / "tokenizer.json",
            vocab_size=model.info.vocab_size,
            eos_token_ids=model.info.eos_token_ids,
        )
        grammars.constraint(FORM)  # reads the tokenizer, and is kept
    rows = []
    for name in arguments.texts:
        case = CASES[name]
        guesses = arguments.draft_tokens if case.guesses else 0
        engines = {
            "off": engine_of(model, 0, forces=False),
            "on": engine_of(model, guesses, forces=True),
        }
        for load in arguments.loads:
            prompts = prompts_of(case.text, 2 * load, tokenizer)
            one = partial(
                run,
                prompts=prompts,
                load=load,
                sampling=_sampling(case, arguments.output_tokens),
                constraint=partial(grammars.constraint, FORM) if case.is_json else None,
            )
            for engine in engines.values():
                one(engine)
            pairs = []
            for repeat in range(arguments.repeats):
                order = list(engines) if repeat % 2 else list(engines)[::-1]
                pairs.append({arm: one(engines[arm]) for arm in order})
            rows.append(_row(name, load, model.info.dtype, pairs))
            _write(arguments, rows)
            print({key: value for key, value in rows[-1].items() if key != "runs"}, flush=True)


def _write(arguments: argparse.Namespace, measured: list[dict[str, Any]]) -> None:
    """Write the table, with the rows of earlier runs that are not measured in this one."""
    is_lookup = arguments.method == "ngram"
    name = "speculation" if is_lookup else "speculation-draft"
    rows = _sorted(_kept(arguments.results / f"{name}.json", measured) + measured)
    table = _table(rows)
    arguments.results.mkdir(parents=True, exist_ok=True)
    drafted_by = "by prompt lookup" if is_lookup else _draft_words(arguments)
    (arguments.results / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")
    (arguments.results / f"{name}.md").write_text(
        "# Speculative decoding on a CPU\n\n"
        f"SmolLM2-135M-Instruct, greedy, {arguments.output_tokens} output tokens, drafts of"
        f" {arguments.draft_tokens} tokens at most {drafted_by}; medians of interleaved pairs.\n"
        f"JSON: {JSON_TOKENS} tokens at most, by a schema of six fields; drafts are what is looked"
        f" up and what the grammar forces, up to {FORCED_TOKENS} tokens, or the latter alone, as"
        f" with `engine.speculative.method: None`.\n\n{table}\n\n"
        "Made by `python benchmarks/speculation.py"
        f"{'' if is_lookup else ' --method draft'}`.\n"
    )


def _sampling(case: Case, output_tokens: int) -> Sampling:
    if case.is_json:
        return Sampling(max_tokens=JSON_TOKENS, temperature=0.0)
    return Sampling(max_tokens=output_tokens, temperature=0.0, ignore_eos=True)


def _kept(path: Path, measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Read the rows that were not measured this time."""
    rows = json.loads(path.read_text()) if path.exists() else []
    replaced = {(row["text"], row["load"]) for row in measured}
    return [row for row in rows if (row["text"], row["load"]) not in replaced]


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (list(CASES).index(row["text"]), row["load"]))


def _draft_words(arguments: argparse.Namespace) -> str:
    layers, to = arguments.draft_layers, arguments.draft_quantization
    whose = "the model itself" if layers is None else f"the model's own first {layers} layers"
    return f"by {whose}" + ("" if to == "none" else f" in {to.upper()}")


def _row(text: str, load: int, dtype: str, pairs: list[dict[str, Outcome]]) -> dict[str, Any]:
    ratios = sorted(pair["on"].tokens_per_s / pair["off"].tokens_per_s for pair in pairs)
    drafted = sum(pair["on"].drafted for pair in pairs)
    return {
        "text": text,
        "load": load,
        "dtype": dtype,
        "off_tokens_per_s": statistics.median(pair["off"].tokens_per_s for pair in pairs),
        "on_tokens_per_s": statistics.median(pair["on"].tokens_per_s for pair in pairs),
        "ratio": statistics.median(ratios),
        "lowest": ratios[0],
        "highest": ratios[-1],
        "drafted": drafted,
        "accepted": sum(pair["on"].accepted for pair in pairs) / max(drafted, 1),
        "runs": [{name: asdict(one) for name, one in pair.items()} for pair in pairs],
    }


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| Text | at once | dtype | off, tok/s | on, tok/s | on / off | range | pairs | accepted |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['text']} | {row['load']} | {row['dtype']} | {row['off_tokens_per_s']:.1f}"
        f" | {row['on_tokens_per_s']:.1f} | {row['ratio']:.2f}"
        f" | {row['lowest']:.2f} to {row['highest']:.2f} | {len(row['runs'])}"
        f" | {row['accepted']:.0%} of {row['drafted']} |"
        for row in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
