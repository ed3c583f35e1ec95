"""The engine's output fits the grammar, whatever the model prefers and whatever runs beside it."""

import json
import re
import threading
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import jsonschema
import pytest
from tokenizers import Tokenizer

from paceline_engine.core.constraint import TokenBitmask
from paceline_engine.engine.engine import Engine
from paceline_engine.grammar.grammar import Grammars
from paceline_testing.tiny_engine import TinyEngine, run_to_end
from paceline_wire import Grammar, Output, Sampling, Submit

SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 0, "maximum": 99},
        "b": {"enum": ["x", "y"]},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}
OBJECT = Grammar("json_schema", json.dumps(SCHEMA))
WORD = Grammar("regex", "[a-f]{3,9}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> TinyEngine:
    return TinyEngine(folder)


@pytest.fixture(scope="module")
def grammars(folder: Path, tiny: TinyEngine) -> Grammars:
    info = tiny.loaded.info
    return Grammars(
        folder / "tokenizer.json", vocab_size=info.vocab_size, eos_token_ids=info.eos_token_ids
    )


def submit(
    engine: Engine, grammars: Grammars, name: str, grammar: Grammar, **sampling: float
) -> None:
    wanted = Sampling(max_tokens=240, seed=sum(name.encode()), **sampling)  # type: ignore[arg-type] # floats
    engine.submit(Submit(name, [5, 6, 7], wanted), grammars.constraint(grammar))


def text(folder: Path, outputs: Sequence[Output]) -> str:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert outputs[-1].finish == "stop"
    return str(tokenizer.decode([token for output in outputs for token in output.token_ids]))


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_outputs_fit_beside_outputs_that_are_free(
    tiny: TinyEngine, folder: Path, grammars: Grammars, temperature: float
) -> None:
    """The free ones are what they are alone."""
    free = Sampling(max_tokens=20, temperature=0.0, ignore_eos=True)
    alone = tiny.run({"free": [5, 6, 7]}, free)["free"]
    engine = tiny.engine()

    engine.submit(Submit("free", [5, 6, 7], free))
    for number in range(4):
        submit(engine, grammars, f"object {number}", OBJECT, temperature=temperature)
        submit(engine, grammars, f"word {number}", WORD, temperature=temperature, top_p=0.9)
    outputs = run_to_end(engine)

    for number in range(4):
        jsonschema.validate(json.loads(text(folder, outputs[f"object {number}"])), SCHEMA)
        assert re.fullmatch("[a-f]{3,9}", text(folder, outputs[f"word {number}"]))
    assert [o.token_ids for o in outputs["free"]] == [o.token_ids for o in alone]


def test_a_preempted_output_goes_on_where_it_was(
    tiny: TinyEngine, folder: Path, grammars: Grammars
) -> None:
    """Its tokens stay, so its matcher does."""
    engine = tiny.engine()
    submit(engine, grammars, "a", OBJECT, temperature=0.0)
    alone = text(folder, run_to_end(engine)["a"])

    engine = tiny.engine()
    submit(engine, grammars, "a", OBJECT, temperature=0.0)
    outputs: list[Output] = []
    while not engine.is_idle:
        outputs += engine.step()
        for request in list(engine.requests.running()):
            if request.num_output_tokens % 3 == 2 and request.num_preemptions < 4:
                engine.requests.preempt(request)

    assert text(folder, outputs) == alone


class _Broken:
    """A constraint whose grammar has become too costly."""

    def fill_bitmask(self, output_ids: Sequence[int], bitmask: TokenBitmask) -> None:
        """Allow two tokens, then none."""
        if len(output_ids) == 2:
            raise ValueError("the grammar is too complex")
        bitmask[:] = 2**32 - 1


class _Stuck:
    """A constraint that works without end."""

    def __init__(self) -> None:
        self.end = threading.Event()

    def fill_bitmask(self, output_ids: Sequence[int], bitmask: TokenBitmask) -> None:
        """Work until the end of the test."""
        del output_ids, bitmask
        work = b"x" * 2**20
        while not self.end.is_set():
            blake2b(work)  # lets go of the interpreter's lock, as matchers do


class _Slow:
    """A constraint that waits long, as threads do on a busy machine, and works little."""

    def fill_bitmask(self, output_ids: Sequence[int], bitmask: TokenBitmask) -> None:
        """Allow everything, after a while."""
        del output_ids
        threading.Event().wait(timeout=0.3)
        bitmask[:] = 2**32 - 1


def test_a_grammar_that_breaks_ends_its_request_alone(tiny: TinyEngine) -> None:
    """And tells why, whether it says so or is waited for in vain."""
    engine = tiny.engine()
    free = Sampling(max_tokens=6, temperature=0.0, ignore_eos=True)
    stuck = _Stuck()
    engine.submit(Submit("broken", [1, 2], free), _Broken())
    for number in range(5):  # more than there are threads
        engine.submit(Submit(f"stuck {number}", [3, 4], free), stuck)
    engine.submit(Submit("slow", [7, 8], free), _Slow())
    engine.submit(Submit("free", [5, 6], free))

    outputs: dict[str, list[Output]] = {}
    while not engine.is_idle:
        for output in engine.step():
            outputs.setdefault(output.id, []).append(output)
    stuck.end.set()

    for name in ("broken", *(f"stuck {number}" for number in range(5))):
        assert outputs[name][-1].finish == "error"
        assert outputs[name][-1].is_invalid
        assert "the grammar is too complex" in (outputs[name][-1].error or "")
    assert sum(len(output.token_ids) for output in outputs["broken"]) == 2
    for name in ("slow", "free"):
        assert sum(len(output.token_ids) for output in outputs[name]) == 6


def test_a_structured_output_ends_where_its_grammar_does(
    tiny: TinyEngine, grammars: Grammars
) -> None:
    """`ignore_eos` and `min_tokens` would contradict it, and are refused."""
    engine = tiny.engine()
    for name, sampling in {
        "eos": Sampling(max_tokens=5, ignore_eos=True),
        "least": Sampling(max_tokens=5, min_tokens=2),
    }.items():
        engine.submit(Submit(name, [1], sampling, grammar=WORD), grammars.constraint(WORD))

    outputs = engine.step()

    assert [(output.finish, output.is_invalid) for output in outputs] == [("error", True)] * 2
    assert all("min_tokens" in (output.error or "") for output in outputs)
