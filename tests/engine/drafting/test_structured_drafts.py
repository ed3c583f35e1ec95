"""Structured output with drafts: the same tokens in fewer steps, and none against the grammar."""

import json
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.core.constraint import (
    DraftGivenUp,
    Guide,
    TokenBitmask,
    Walk,
    empty_bitmasks,
    is_allowed,
)
from paceline_engine.core.request import Request
from paceline_engine.drafting.guided import GuidedProposer
from paceline_engine.drafting.ngram import NgramProposer
from paceline_engine.drafting.proposer import Ask
from paceline_engine.drafting.speculation import Speculation
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.grammar.grammar import Grammars, TokenMatcher
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.scheduling.scheduler import ContinuousScheduler
from paceline_testing.byte_tokenizer import EOS_ID, VOCAB_SIZE, byte_tokenizer, write_tokenizer
from paceline_testing.clock import ManualClock
from paceline_testing.tiny_engine import TinyEngine, run_to_end
from paceline_wire import Grammar, Sampling, StepFeatures, Submit
from paceline_wire.limits import Limits

TOKENIZER = byte_tokenizer()
ORDER = {
    "type": "object",
    "properties": {
        "customer_number": {"type": "integer", "minimum": 0, "maximum": 99},
        "delivery": {"enum": ["express", "exact", "standard"]},
        "parts": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"part_name": {"enum": ["a", "b"]}},
                "required": ["part_name"],
                "additionalProperties": False,
            },
            "minItems": 2,
            "maxItems": 2,
        },
    },
    "required": ["customer_number", "delivery", "parts"],
    "additionalProperties": False,
}
FORMS = (
    Grammar("json_schema", json.dumps(ORDER)),
    Grammar("regex", "the answer is (yes|yellow|no), (and|or) that is (all|[a-c]{2,9})"),
    Grammar("choice", '["international", "internal", "interned"]'),
)


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Grammars(folder / "tokenizer.json", vocab_size=VOCAB_SIZE, eos_token_ids=[EOS_ID])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> TinyEngine:
    return TinyEngine(folder)


@pytest.fixture(scope="module")
def tiny_grammars(folder: Path, tiny: TinyEngine) -> Grammars:
    info = tiny.loaded.info
    return Grammars(
        folder / "tokenizer.json", vocab_size=info.vocab_size, eos_token_ids=info.eos_token_ids
    )


def mask_of(matcher: TokenMatcher, output: Sequence[int]) -> TokenBitmask:
    bitmask: TokenBitmask = empty_bitmasks(1, VOCAB_SIZE)[0]
    matcher.fill_bitmask(output, bitmask)
    return bitmask


def allowed(bitmask: TokenBitmask) -> list[int]:
    bits = np.unpackbits(bitmask.view(np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits)]


words = st.text("abc", min_size=1, max_size=6)
schemas = st.recursive(
    st.one_of(
        words.map(lambda word: {"const": word}),
        st.lists(words, min_size=1, max_size=3, unique=True).map(lambda some: {"enum": some}),
        st.just({"type": "boolean"}),
        st.just({"type": "integer", "minimum": 0, "maximum": 9}),
    ),
    lambda inner: st.dictionaries(words, inner, min_size=1, max_size=3).map(
        lambda fields: {
            "type": "object",
            "properties": fields,
            "required": list(fields),
            "additionalProperties": False,
        }
    ),
    max_leaves=5,
)


@settings(deadline=None, max_examples=40)
@given(schemas, st.randoms(use_true_random=False))
def test_masks_along_any_draft_are_those_of_the_tokens_one_by_one(
    grammars: Grammars, schema: dict[str, Any], chance: Any
) -> None:
    """And afterwards the matcher stands where it stood, whatever was drafted and walked."""
    form = Grammar("json_schema", json.dumps(schema))
    along, plain = grammars.constraint(form), grammars.constraint(form)
    output: list[int] = []
    for _ in range(40):
        proposed = [chance.randrange(VOCAB_SIZE) for _ in range(chance.randrange(4))]
        if chance.random() < 0.5:  # one that goes well for some time
            proposed = good_tokens(grammars, form, output, chance, chance.randrange(6)) + proposed
        walk = along.walk(output, proposed, most=chance.randrange(1, 9))
        draft = walk.token_ids if chance.random() < 0.7 else tuple(proposed)
        masks = empty_bitmasks(1 + len(draft), VOCAB_SIZE)
        along.fill_bitmasks(output, draft, masks)

        for place, mask in enumerate(masks):
            reached = grammars.constraint(form)
            assert np.array_equal(mask, mask_of(reached, [*output, *draft[:place]]))
            if place < len(draft) and not is_allowed(draft[place], mask):
                break
        for place, is_forced in enumerate(walk.is_forced):
            before = grammars.constraint(form)
            options = allowed(mask_of(before, [*output, *walk.token_ids[:place]]))
            assert walk.token_ids[place] in options
            assert not is_forced or options == [walk.token_ids[place]]
        options = allowed(mask_of(plain, output))
        assert options == allowed(mask_of(along, output))
        token = chance.choice(options)
        if token == EOS_ID:
            break
        output.append(token)


def good_tokens(
    grammars: Grammars, form: Grammar, output: list[int], chance: Any, count: int
) -> list[int]:
    matcher, tokens = grammars.constraint(form), list(output)
    for _ in range(count):
        token = chance.choice(allowed(mask_of(matcher, tokens)))
        if token == EOS_ID:
            break
        tokens.append(token)
    return tokens[len(output) :]


def test_forced_tokens_need_no_proposal(grammars: Grammars) -> None:
    """Keys of a schema are known as soon as their object is open."""
    matcher = grammars.constraint(FORMS[0])

    walk = matcher.walk(TOKENIZER.encode('{"').ids, (), 16)

    assert TOKENIZER.decode(list(walk.token_ids)) == 'customer_number"'
    assert all(walk.is_forced)


def test_a_proposal_is_cut_where_the_grammar_refuses_it(grammars: Grammars) -> None:
    """What follows a refused token would be computed for nothing; an end is never a draft."""
    matcher = grammars.constraint(Grammar("regex", "[a-c]+"))
    proposed = TOKENIZER.encode("abxc").ids

    assert matcher.walk([], proposed, 16).token_ids == tuple(proposed[:2])
    assert matcher.walk([], [*proposed[:1], EOS_ID], 16) == Walk((proposed[0],), (False,))


def test_a_long_run_of_forced_tokens_is_found_once(grammars: Grammars) -> None:
    """Step by step the same tokens come, as many as may."""
    text = "x" + "lorem ipsum " * 40
    matcher = grammars.constraint(Grammar("choice", json.dumps([text])))
    output: list[int] = []

    while len(output) < len(text):
        walk = matcher.walk(output, (), 16)
        assert 0 < len(walk.token_ids) <= 16
        output += walk.token_ids

    assert TOKENIZER.decode(output) == text
    assert matcher.walk(output, (), 16) == Walk()


def test_a_draft_that_proves_too_costly_is_the_last(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the masks are what they were: nobody's request ends for a draft."""
    matcher, (a, b) = grammars.constraint(Grammar("regex", "[ab]{9}")), TOKENIZER.encode("ab").ids
    mask = mask_of(matcher, [a])
    monkeypatch.setattr(matcher, "_fill", lambda bitmask: bitmask.fill(2**32 - 1))
    monkeypatch.setattr("paceline_engine.grammar.grammar._MAX_BITMASK_S", -1.0)

    with pytest.raises(DraftGivenUp):
        matcher.fill_bitmasks([a], [b, b], empty_bitmasks(3, VOCAB_SIZE))
    monkeypatch.undo()

    assert matcher.walk([a], [b], 4) == Walk()
    assert np.array_equal(mask_of(matcher, [a]), mask)


@dataclass
class Run:
    """What an engine gave, and in how many steps."""

    tokens: dict[str, list[int]]
    finish: dict[str, str | None]
    engine: Engine = field(repr=False)


def an_engine(tiny: TinyEngine, *, draft_tokens: int, forced_tokens: int, overlap: bool) -> Engine:
    loaded = tiny.loaded
    return Engine(
        loaded.runner,
        loaded.info,
        loaded.capacity,
        NoPacer(),
        limits=Limits(max_batch_size=16, token_budget=256),
        clock=ManualClock(),
        options=EngineOptions(
            draft_tokens=draft_tokens,
            forced_tokens=forced_tokens,
            overlap=overlap,
        ),
    )


def be_patient(engine: Engine) -> None:
    """Let a busy machine draft as much as an idle one."""
    assert isinstance(engine.scheduler, ContinuousScheduler)
    assert engine.scheduler.speculation is not None
    engine.scheduler.speculation.guided.patience_s = 60.0


def every_way(chance: random.Random) -> list[tuple[Submit, Grammar | None]]:
    """Greedy, drawn and cut; penalised, biased and with logprobs; both lanes; and free ones."""
    plain = Sampling(max_tokens=90, temperature=0.0)
    ways = [
        plain,
        changed(plain, temperature=1.0, seed=3),
        changed(plain, temperature=0.7, seed=4, top_k=20, top_p=0.9),
        changed(plain, temperature=1.5, seed=5, min_p=0.01, max_tokens=chance.randrange(2, 30)),
        changed(plain, logprobs=2),
        changed(plain, temperature=1.0, seed=6, frequency_penalty=0.8, repetition_penalty=1.2),
        changed(plain, temperature=1.0, seed=7, logit_bias={40: 3.0}),
    ]
    submits: list[tuple[Submit, Grammar | None]] = []
    for number, way in enumerate(ways):
        for form in FORMS:
            prompt = [chance.randrange(3, 60) for _ in range(1 + chance.randrange(9))]
            lane: Any = chance.choice(["interactive", "batch"])
            submit = Submit(f"{number} {form.kind}", prompt, way, lane=lane)
            submits.append((submit, form))
        free = Sampling(max_tokens=20, temperature=0.0, ignore_eos=True, logprobs=way.logprobs)
        submits.append((Submit(f"free {number}", [5, 6, 7, 8] * 3, free), None))
    return submits


def changed(sampling: Sampling, **changes: Any) -> Sampling:
    return msgspec.structs.replace(sampling, **changes)


def served(
    engine: Engine,
    grammars: Grammars,
    submits: Sequence[tuple[Submit, Grammar | None]],
    chance: random.Random | None = None,
) -> Run:
    """Run to the end; with `chance` requests arrive and are preempted at random steps."""
    coming = list(submits)
    tokens: dict[str, list[int]] = {submit.id: [] for submit, _ in submits}
    finish: dict[str, str | None] = {}
    for _ in range(5000):
        while coming and (chance is None or chance.random() < 0.6):
            submit, form = coming.pop(0)
            engine.submit(submit, None if form is None else grammars.constraint(form))
        for output in engine.step():
            assert output.error is None, output.error
            tokens[output.id] += output.token_ids
            finish[output.id] = output.finish
        running = [each for each in engine.requests.running() if not each.num_in_flight]
        if chance is not None and running and chance.random() < 0.1:
            engine.requests.preempt(chance.choice(running))
        if engine.is_idle and not coming:
            return Run(tokens, finish, engine)
    raise AssertionError("it does not end")


@pytest.mark.parametrize("overlap", [False, True], ids=["one by one", "overlapping"])
@pytest.mark.parametrize("draft_tokens", [0, 5], ids=["forced alone", "looked up too"])
@pytest.mark.parametrize("seed", range(2))
def test_every_output_is_what_it_is_without_drafts(
    tiny: TinyEngine, tiny_grammars: Grammars, seed: int, draft_tokens: int, overlap: bool
) -> None:
    """Token for token, whoever runs beside it, and whatever it asks for beside its form."""
    submits = every_way(random.Random(seed))
    without = an_engine(tiny, draft_tokens=0, forced_tokens=0, overlap=False)
    plain = served(without, tiny_grammars, submits)
    engine = an_engine(
        tiny, draft_tokens=draft_tokens, forced_tokens=16, overlap=overlap and not draft_tokens
    )

    drafted = served(engine, tiny_grammars, submits, random.Random(seed))

    assert drafted.tokens == plain.tokens
    assert drafted.finish == plain.finish
    assert engine.load().accepted_tokens > 100
    assert engine.requests.blocks.pool.num_used == 0


def test_forced_tokens_are_never_refused_and_save_steps(
    tiny: TinyEngine, tiny_grammars: Grammars
) -> None:
    """Without any speculative decoding asked for; free requests have no draft at all."""
    sampling = Sampling(max_tokens=90, temperature=1.0, seed=2)
    alone = [(Submit("a", [5, 6, 7], sampling), FORMS[1])]
    plain = served(
        an_engine(tiny, draft_tokens=0, forced_tokens=0, overlap=False), tiny_grammars, alone
    )
    engine = an_engine(tiny, draft_tokens=0, forced_tokens=16, overlap=False)
    be_patient(engine)

    drafted = served(engine, tiny_grammars, alone)

    told = engine.load()
    assert drafted.tokens == plain.tokens
    assert told.accepted_tokens == told.draft_tokens > 20
    assert engine.counters.steps < 0.6 * plain.engine.counters.steps
    assert engine.counters.steps + told.accepted_tokens == plain.engine.counters.steps


class Gated:
    """A guide of three tokens in turn; its masks wait at a gate once the output is so long."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.gate = threading.Event()
        self.drafts: list[tuple[int, ...]] = []

    def walk(self, output_ids: Sequence[int], proposed: Sequence[int], most: int) -> Walk:
        del proposed
        count = min(most, 2)
        tokens = tuple(self._token(len(output_ids) + place) for place in range(count))
        return Walk(tokens, (True,) * count)

    def fill_bitmask(self, output_ids: Sequence[int], bitmask: TokenBitmask) -> None:
        self.fill_bitmasks(output_ids, (), bitmask[np.newaxis])

    def fill_bitmasks(
        self, output_ids: Sequence[int], draft: Sequence[int], bitmasks: TokenBitmask
    ) -> None:
        self.drafts.append(tuple(draft))
        if len(output_ids) >= self.length:
            self.gate.wait(timeout=60)
        for place, bitmask in enumerate(bitmasks):
            bitmask[:] = 0
            bitmask[0] = 1 << self._token(len(output_ids) + place)

    @staticmethod
    def _token(place: int) -> int:
        return 5 + place % 3


def test_a_drafted_row_whose_masks_are_late_sits_the_step_out(tiny: TinyEngine) -> None:
    """It keeps row and blocks, nobody waits for it, and nothing of its draft is taken."""
    sampling = Sampling(max_tokens=12, temperature=0.0)
    engine = an_engine(tiny, draft_tokens=0, forced_tokens=16, overlap=False)
    be_patient(engine)
    late = Gated(4)
    engine.submit(Submit("late", [3, 4], sampling), late)
    engine.submit(Submit("free", [5, 6, 7], Sampling(max_tokens=30, ignore_eos=True)))
    tokens: dict[str, list[int]] = {"late": [], "free": []}

    while len(tokens["free"]) < 30:
        for output in engine.step():
            tokens[output.id] += output.token_ids
    so_far, running = list(tokens["late"]), engine.requests.num_running
    late.gate.set()
    tokens["late"] += [token for output in run_to_end(engine)["late"] for token in output.token_ids]

    assert (so_far, running) == ([5, 6, 7, 5], 1)
    assert tokens["late"] == [5, 6, 7] * 4
    assert (5 + 4 % 3, 5 + 5 % 3) in late.drafts
    assert engine.requests.blocks.pool.num_used == 0


class GivesUp(Gated):
    """Cannot be followed along drafts, which nobody knows before."""

    def __init__(self) -> None:
        super().__init__(length=999)
        self.has_given_up = False

    def walk(self, output_ids: Sequence[int], proposed: Sequence[int], most: int) -> Walk:
        return Walk() if self.has_given_up else super().walk(output_ids, proposed, most)

    def fill_bitmasks(
        self, output_ids: Sequence[int], draft: Sequence[int], bitmasks: TokenBitmask
    ) -> None:
        if draft:
            self.has_given_up = True
            raise DraftGivenUp
        super().fill_bitmasks(output_ids, draft, bitmasks)


def test_a_draft_that_is_given_up_costs_its_request_a_step(tiny: TinyEngine) -> None:
    """And no token."""
    engine = an_engine(tiny, draft_tokens=0, forced_tokens=16, overlap=False)
    be_patient(engine)
    engine.submit(Submit("a", [3, 4], Sampling(max_tokens=9, temperature=0.0)), GivesUp())

    outputs = run_to_end(engine)["a"]

    assert [token for output in outputs for token in output.token_ids] == [5, 6, 7] * 3
    assert engine.counters.steps == 10


def test_who_leaves_beside_a_draft_leaves_the_others_their_tokens(tiny: TinyEngine) -> None:
    """The step behind a draft knows its tokens, though the drafted request has been aborted."""
    free = Sampling(max_tokens=40, temperature=0.0, ignore_eos=True)
    alone = [t for o in tiny.run({"free": [5, 6, 7]}, free)["free"] for t in o.token_ids]
    engine = an_engine(tiny, draft_tokens=0, forced_tokens=16, overlap=True)
    engine.submit(Submit("free", [5, 6, 7], free))
    tokens: list[int] = []

    for round_ in range(200):
        if engine.requests.get("form") is None and not engine.is_idle:
            form = Submit("form", [3, 4], Sampling(max_tokens=60, temperature=0.0))
            engine.submit(form, Gated(999))
        tokens += [t for o in engine.step() if o.id == "free" for t in o.token_ids]
        if round_ % 3 == 2:
            engine.abort(["form"])
        if len(tokens) == 40:
            break

    assert tokens == alone
    assert engine.load().draft_tokens > 0


def a_request(id_: str, constraint: Guide, output: Sequence[int]) -> Request:
    known = [1, 2, 3, 1, 2, 3, *output]
    return Request(
        id=id_,
        token_ids=known,
        num_prompt_tokens=6,
        sampling=Sampling(max_tokens=100),
        num_computed=len(known) - 1,
        constraint=constraint,
    )


class PricedPacer(NoPacer):
    """A step takes 10 ms, and 5 ms for each token: a token of a wrong draft is dear."""

    def predict_ms(self, step: StepFeatures) -> float:
        return 10.0 + 5.0 * step.tokens


def test_forced_tokens_are_priced_as_certain(grammars: Grammars) -> None:
    """Where guesses have failed so often that none pays, and they do not change what is learned."""
    request = a_request("a", grammars.constraint(FORMS[0]), TOKENIZER.encode('{"').ids)
    speculation = Speculation(4, 2048, NgramProposer())
    for _ in range(200):
        speculation.verified(request, drafted=4, accepted=0)
    chance = speculation.acceptance.chance("a", "interactive")

    asks = speculation.plan([request], PricedPacer(), context=8, room=100)
    draft = speculation.propose(asks).drafts["a"]
    speculation.verified(request, drafted=len(draft), accepted=len(draft))

    assert TOKENIZER.decode(list(draft)) == 'customer_number"'
    assert asks[0].expected == len(draft)
    assert speculation.acceptance.chance("a", "interactive") == pytest.approx(chance, rel=0.01)


class Dear:
    """A draft model that takes longer than anything it could save."""

    first_chance = 0.9
    takes_time = True

    def __init__(self) -> None:
        self.asked: list[str] = []

    def reach(self, request: Request, most: int) -> int:
        del request
        return most

    def pending(self, request: Request) -> int:
        del request
        return 1

    def ms(self, asks: Sequence[Ask]) -> float:
        return 1000.0 * len(asks)

    def ms_of_one(self, rows: int, context: int) -> float:
        del context
        return 1000.0 * rows

    def propose(self, asks: Sequence[Ask]) -> Any:
        raise AssertionError(asks)

    def forget(self, request: Request) -> None:
        del request


def test_a_dear_draft_model_does_not_stand_in_the_way_of_what_is_forced(grammars: Grammars) -> None:
    """Nor do prompts that wait: what is forced takes no time to find."""
    request = a_request("a", grammars.constraint(FORMS[0]), TOKENIZER.encode('{"').ids)
    speculation = Speculation(4, 2048, Dear())

    asks = speculation.plan([request], PricedPacer(), context=8, room=100, prompts=5)

    assert speculation.propose(asks).drafts["a"]


def test_drafts_fit_into_the_rows_that_may_be_masked(grammars: Grammars) -> None:
    """Their scores take memory that was measured for so many rows and no more."""
    output = TOKENIZER.encode('{"').ids
    requests = [a_request(str(n), grammars.constraint(FORMS[0]), output) for n in range(3)]
    speculation = Speculation(0, 2048, None, max_rows=8)

    asks = speculation.plan(requests, NoPacer(), context=24, room=100)

    assert sum(ask.count for ask in asks) == 5


def test_a_walk_that_is_not_done_in_time_is_left_out() -> None:
    """The step goes on without its draft; the thread asks nobody else."""
    go_on = threading.Event()

    class Endless(Gated):
        def walk(self, output_ids: Sequence[int], proposed: Sequence[int], most: int) -> Walk:
            go_on.wait(timeout=60)
            return super().walk(output_ids, proposed, most)

    guided = GuidedProposer(None, patience_s=0.01)
    request = a_request("a", Endless(0), [5])

    guided.look_ahead([request], most=4, guesses=0)
    go_on.set()

    assert guided.reach(request, 4) == 0
    assert guided.propose([]).drafts == {}
