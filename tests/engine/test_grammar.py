"""Structured output: what is allowed, what is refused, and in how much time."""

import json
import queue
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.core.constraint import empty_bitmasks
from paceline_engine.grammar.grammar import (
    CompiledGrammar,
    GrammarCompiler,
    GrammarError,
    Grammars,
    TokenMatcher,
)
from paceline_testing.byte_tokenizer import EOS_ID, VOCAB_SIZE, byte_tokenizer, write_tokenizer
from paceline_wire import Grammar, Sampling, Submit

TOKENIZER = byte_tokenizer()


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Grammars(folder / "tokenizer.json", vocab_size=VOCAB_SIZE, eos_token_ids=[EOS_ID])


def walk(grammars: Grammars, grammar: Grammar, pick: Callable[[list[int]], int]) -> str:
    """A text that the grammar allows, each token picked from those that may come."""
    constraint = grammars.constraint(grammar)
    output: list[int] = []
    for _ in range(400):
        bitmask = empty_bitmasks(1, VOCAB_SIZE)
        constraint.fill_bitmask(output, bitmask[0])
        bits = np.unpackbits(bitmask.view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits).tolist()
        assert allowed, "nothing may come, not even the end"
        assert max(allowed) < VOCAB_SIZE
        token = pick(allowed)
        if token == EOS_ID:
            return str(TOKENIZER.decode(output))
        output.append(token)
    raise AssertionError(f"no end: {TOKENIZER.decode(output)!r}")


def ends_soon(random: Any) -> Callable[[list[int]], int]:
    """End where that is allowed, close what is open, else whatever comes."""
    closing = [EOS_ID, *TOKENIZER.encode('"}],').ids]

    def pick(allowed: list[int]) -> int:
        good = [token for token in closing if token in allowed]
        return good[0] if good and random.random() < 0.8 else random.choice(allowed)

    return pick


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@settings(deadline=None, max_examples=40)
@given(random=st.randoms(use_true_random=False))
def test_whatever_is_picked_fits_the_schema(grammars: Grammars, random: Any) -> None:
    """From the first token to the end, with no dead end."""
    text = walk(grammars, Grammar("json_schema", json.dumps(SCHEMA)), ends_soon(random))

    jsonschema.validate(json.loads(text), SCHEMA)


@settings(deadline=None, max_examples=30)
@given(random=st.randoms(use_true_random=False))
@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("regex", "[a-c]{2,4}-[0-9]{2}", "[a-c]{2,4}-[0-9]{2}"),
        ("choice", '["yes", "no", "per\\"haps", "ja \u00e9"]', 'yes|no|per"haps|ja é'),
        ("grammar", 'start: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]{1,3}/', r"\d{1,3}(\+\d{1,3})*"),
        ("grammar", 'root ::= ("a" | "b") "c"?', "[ab]c?"),
    ],
)
def test_whatever_is_picked_fits(
    grammars: Grammars, kind: Any, text: str, expected: str, random: Any
) -> None:
    """An expression, a choice, a grammar in Lark's words and one in llama.cpp's."""
    assert re.fullmatch(expected, walk(grammars, Grammar(kind, text), ends_soon(random)))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", "{"),
        ("json_schema", '{"type": "strang"}'),
        ("json_schema", '{"$ref": "#/nowhere"}'),
        ("json_schema", '{"type": "array", "items":' * 3000 + "{}" + "}" * 3000),
        ("json_schema", '{"type": "string", "pattern": "("}'),
        ("regex", "(a"),
        ("regex", "(" * 1500 + "a" + ")" * 1500),
        ("choice", "[]"),
        ("grammar", "start: nowhere"),
        ("grammar", "root ::= " + "(" * 20_000),
        ("grammar", "start: " + "(" * 20_000),
        ("grammar", "\x00"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_grammar_is_told_in_one_line(grammars: Grammars, kind: Any, text: str) -> None:
    """And never ends the process."""
    with pytest.raises(GrammarError) as caught:
        grammars.constraint(Grammar(kind, text))

    assert 0 < len(str(caught.value)) <= 300
    assert "\n" not in str(caught.value)


def _done(grammars: Grammars, *texts: tuple[Any, str]) -> list[CompiledGrammar]:
    """Compile as the engine does, in threads; what came of each."""
    done: list[CompiledGrammar] = []
    all_done = threading.Event()

    def take(compiled: CompiledGrammar) -> None:
        done.append(compiled)
        if len(done) == len(texts):
            all_done.set()

    compiler = GrammarCompiler(grammars, take)
    for number, (kind, text) in enumerate(texts):
        compiler.start(
            Submit(str(number), [1], Sampling(max_tokens=1), grammar=Grammar(kind, text))
        )
    assert all_done.wait(timeout=300)
    assert all(compiler.take(compiled) for compiled in done)
    assert len(compiler) == 0
    compiler.close()
    return done


def _chain(rules: int) -> str:
    return "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(rules)) + f'r{rules}: "a"'


def test_a_chain_of_rules_does_not_overflow_the_stack(grammars: Grammars) -> None:
    """Each calls the next: in a thread of the usual stack the process would end."""
    (compiled,) = _done(grammars, ("grammar", _chain(5000)))

    assert compiled.constraint is not None
    bitmask = empty_bitmasks(1, VOCAB_SIZE)
    compiled.constraint.fill_bitmask([], bitmask[0])
    assert bitmask.any()


def test_a_request_that_was_forgotten_is_not_taken(grammars: Grammars) -> None:
    """Its client left while the grammar was compiled."""
    done: list[CompiledGrammar] = []
    came = threading.Event()

    def take(compiled: CompiledGrammar) -> None:
        done.append(compiled)
        came.set()

    compiler = GrammarCompiler(grammars, take)

    compiler.start(Submit("a", [1], Sampling(max_tokens=1), grammar=Grammar("regex", "xyz+")))
    assert came.wait(timeout=60)
    assert compiler.forget(["a", "b"]) == ["a"]

    assert not compiler.take(done[0])
    compiler.close()


class _Stuck(Grammars):
    """Compiles a regular expression until it is let go, anything else at once."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def refusal(self, grammar: Grammar) -> str:
        del grammar
        return ""

    def constraint(self, grammar: Grammar) -> TokenMatcher:
        if grammar.kind == "regex":
            assert self.go_on.wait(timeout=300)
        raise GrammarError(grammar.text)


def test_one_caller_does_not_take_every_thread() -> None:
    """Another one's grammar is compiled while the first one's next ones wait."""
    grammars, told = _Stuck(), queue.SimpleQueue[CompiledGrammar]()
    compiler = GrammarCompiler(grammars, told.put, num_threads=2)

    def start(id_: str, caller: str, kind: Any) -> None:
        grammar = Grammar(kind, id_)
        compiler.start(Submit(id_, [1], Sampling(max_tokens=1), grammar=grammar, caller=caller))

    for number in range(3):
        start(f"greedy {number}", "greedy", "regex")
    start("modest", "modest", "choice")

    assert told.get(timeout=300).error == "modest"
    grammars.go_on.set()
    assert {told.get(timeout=300).error for _ in range(3)} == {f"greedy {n}" for n in range(3)}
    compiler.close()


def test_a_grammar_that_explodes_as_the_text_grows_is_given_up(grammars: Grammars) -> None:
    """The engine ends its request; the others go on."""
    (compiled,) = _done(grammars, ("grammar", 'start: s\ns: s s | "a" | "b" | s s s | ""'))
    assert compiled.constraint is not None
    constraint = compiled.constraint
    (a,) = TOKENIZER.encode("a").ids

    def grow() -> None:
        for length in range(3000):
            constraint.fill_bitmask([a] * length, empty_bitmasks(1, VOCAB_SIZE)[0])

    with pytest.raises(ValueError, match=r"complex|items|fuel"):
        grow()


def test_other_threads_go_on_while_a_large_schema_is_compiled(grammars: Grammars) -> None:
    """Compiling lets go of the interpreter's lock: what counts here runs at the same time."""

    def counted(size: int) -> int:
        fields = {f"f{i}": {"type": "object", "properties": {"k": {}}} for i in range(size)}
        schema = json.dumps({"properties": fields})
        compiled: list[CompiledGrammar] = []
        worker = threading.Thread(
            target=lambda: compiled.extend(_done(grammars, ("json_schema", schema)))
        )
        count = 0
        worker.start()
        while worker.is_alive():
            count += 1
            time.sleep(0)
        worker.join()
        assert compiled[0].constraint is not None
        return count

    # On a machine with much to do this thread gets no core now and then, whoever has the lock.
    assert any(counted(size) > 100 for size in range(2000, 2010))


def test_what_was_compiled_is_kept(grammars: Grammars) -> None:
    """And each request follows its own output."""
    grammar = Grammar("choice", '["one", "two"]')
    first, second = grammars.constraint(grammar), grammars.constraint(grammar)
    bitmask = empty_bitmasks(2, VOCAB_SIZE)

    first.fill_bitmask(TOKENIZER.encode("o").ids, bitmask[0])
    second.fill_bitmask(TOKENIZER.encode("t").ids, bitmask[1])

    bits = [np.unpackbits(row.view(np.uint8), bitorder="little") for row in bitmask]
    assert [TOKENIZER.decode(np.flatnonzero(each).tolist()) for each in bits] == ["n", "w"]
    assert grammar in grammars._compiled


def test_what_was_refused_is_refused_at_once_when_it_comes_again(grammars: Grammars) -> None:
    """Without a thread of the compiler: those are for grammars that nobody has seen yet."""
    wrong = Grammar("regex", "(unclosed")
    submit = Submit("again", [1], Sampling(max_tokens=1), grammar=wrong)
    told: list[CompiledGrammar] = []
    with pytest.raises(GrammarError) as refused:
        grammars.constraint(wrong)
    compiler = GrammarCompiler(grammars, told.append)

    compiler.start(submit)
    compiler.close()

    assert [each.error for each in told] == [str(refused.value)]
    assert compiler.take(told[0])


def test_a_grammar_that_proves_too_costly_is_refused_from_then_on(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sends it again does not slow the others down again."""
    grammar = Grammar("regex", "[a-z]{5}")
    constraint = grammars.constraint(grammar)
    monkeypatch.setattr("paceline_engine.grammar.grammar._MAX_BITMASK_S", 0.0)

    with pytest.raises(ValueError, match="too complex"):
        constraint.fill_bitmask([], empty_bitmasks(1, VOCAB_SIZE)[0])

    with pytest.raises(GrammarError, match="too complex"):
        grammars.constraint(grammar)


def test_refusals_are_remembered_by_digest_and_no_more_than_a_thousand(grammars: Grammars) -> None:
    """Their texts are up to 64 KiB long, and clients make them up."""
    for number in range(1100):
        grammars._refuse(number.to_bytes(32, "big"), "no")

    assert len(grammars._refused) == 1024
