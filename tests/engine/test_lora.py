"""LoRA adapters: each request as if its adapter were merged, whatever else is in the step."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline_engine.drafting.guided import FORCED_TOKENS
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.grammar.grammar import Grammars
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.scheduling.scheduler import ContinuousScheduler
from paceline_engine.settings import Quantization, Settings
from paceline_testing.clock import ManualClock
from paceline_testing.tiny_adapter import make_tiny_adapter
from paceline_testing.tiny_model import make_tiny_model
from paceline_wire import (
    AdaptersState,
    Grammar,
    LoadAdapter,
    Output,
    Sampling,
    Submit,
    UnloadAdapter,
)
from paceline_wire.limits import Limits

NEW_TOKENS = 10
GREEDY = Sampling(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
PROMPT = torch.randint(3, 300, (37,), generator=torch.Generator().manual_seed(7)).tolist()
ADAPTERS: dict[str, dict[str, Any]] = {
    "every": {"seed": 1},
    "wide": {"seed": 2, "rank": 8, "products": ["self_attn.q_proj", "mlp.down_proj"]},
    "rs": {"seed": 3, "rank": 1, "products": ["self_attn.v_proj"], "use_rslora": True},
}


@dataclass(frozen=True)
class Served:
    folder: Path
    loaded: LoadedModel
    merged: Mapping[str, Any]
    """The model with each adapter merged, as transformers runs it; without one by ''."""

    def engine(self, *, forced_tokens: int = FORCED_TOKENS, **limits: Any) -> Engine:
        """A scheduler of its own around the model; adapters stay as they are."""
        return Engine(
            self.loaded.runner,
            self.loaded.info,
            self.loaded.capacity,
            NoPacer(),
            limits=Limits(**{"max_batch_size": 8, "token_budget": 512, **limits}),
            clock=ManualClock(),
            options=EngineOptions(adapters=self.loaded.adapters, forced_tokens=forced_tokens),
        )

    def expected(self, adapter: str, prompt: list[int]) -> list[int]:
        """Greedy, by the whole sequence each time."""
        tokens = list(prompt)
        with torch.inference_mode():
            for _ in range(NEW_TOKENS):
                best = self.merged[adapter](torch.tensor([tokens])).logits[0, -1].topk(2)
                assert best.values[0] - best.values[1] > 1e-4, "a near tie: choose another seed"
                tokens.append(int(best.indices[0]))
        return tokens[len(prompt) :]


def _served(folder: Path, *, max_loras: int, quantization: Quantization = "none") -> Served:
    model = make_tiny_model(folder / "model", "qwen2")
    merged = {"": model}
    for name, made in ADAPTERS.items():
        growth = make_tiny_adapter(folder / name, model, **made)
        merged[name] = copy.deepcopy(model)
        state = merged[name].state_dict()
        for weight, grown in growth.items():
            state[weight] += grown
    settings = Settings(
        model_uri=f"file://{folder / 'model'}",
        device="cpu",
        dtype="float32",
        threads=1,
        kv_cache_bytes=1 << 22,
        block_size=4,
        max_loras=max_loras,
        max_lora_rank=8,
        quantization=quantization,
    )
    return Served(folder, load_model(settings, lambda _stage, _fraction: None), merged)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return _served(tmp_path, max_loras=3)


def _load(engine: Engine, served: Served, name: str, *, folder: str | None = None) -> AdaptersState:
    return engine.change_adapters(LoadAdapter(1, name, str(served.folder / (folder or name))))


def _submit(engine: Engine, id_: str, adapter: str, prompt: list[int] = PROMPT) -> None:
    engine.submit(Submit(id_, prompt, GREEDY, adapter=adapter))


def _finish(engine: Engine) -> dict[str, list[Output]]:
    outputs: dict[str, list[Output]] = {}
    while not engine.is_idle:
        for output in engine.step():
            outputs.setdefault(output.id, []).append(output)
    return outputs


def _tokens(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


@pytest.mark.parametrize("limits", [{}, {"token_budget": 7}, {"max_batch_size": 1}], ids=str)
def test_each_request_is_served_by_its_own_adapter(served: Served, limits: dict[str, int]) -> None:
    """Four requests of one prompt in one batch: three adapters, of several ranks, and none."""
    engine = served.engine(**limits)
    for name in ADAPTERS:
        assert _load(engine, served, name).error is None
    for adapter in served.merged:
        _submit(engine, f"with {adapter}", adapter)

    outputs = _finish(engine)

    expected = {adapter: served.expected(adapter, PROMPT) for adapter in served.merged}
    assert len({tuple(tokens) for tokens in expected.values()}) == len(expected)
    for adapter, tokens in expected.items():
        assert _tokens(outputs[f"with {adapter}"]) == tokens, adapter


def test_drafts_of_structured_output_are_verified_by_the_requests_own_adapter(
    served: Served,
) -> None:
    """Each adapter's answer is the one that it gives token by token; the forms force half of it."""
    info = served.loaded.info
    grammars = Grammars(
        served.folder / "model" / "tokenizer.json",
        vocab_size=info.vocab_size,
        eos_token_ids=info.eos_token_ids,
    )
    form = Grammar("regex", "first ([a-z]{4}), second ([a-z]{4}), third ([a-z]{4})")
    engines = [served.engine(forced_tokens=0), served.engine()]
    scheduler = engines[1].scheduler
    assert isinstance(scheduler, ContinuousScheduler)
    assert scheduler.speculation is not None
    scheduler.speculation.guided.patience_s = 60.0  # a busy machine drafts as much
    for name in ADAPTERS:
        assert _load(engines[0], served, name).error is None
    answers = []
    for engine in engines:
        for adapter in served.merged:
            sampling = Sampling(max_tokens=60, temperature=0.0)
            submit = Submit(f"with {adapter}", PROMPT, sampling, adapter=adapter)
            engine.submit(submit, grammars.constraint(form))
        answers.append({id_: _tokens(outputs) for id_, outputs in _finish(engine).items()})
    accepted = [engine.load().accepted_tokens for engine in engines]

    assert answers[0] == answers[1]
    assert len({tuple(tokens) for tokens in answers[1].values()}) > 1
    assert accepted[0] == 0
    assert accepted[1] > 4 * 10


def test_a_prefix_is_shared_only_under_the_same_adapter(served: Served) -> None:
    """The same tokens have other keys and values under another adapter, or another load of it."""
    engine = served.engine()
    _load(engine, served, "every")
    _load(engine, served, "rs")

    def cached(adapter: str) -> int:
        _submit(engine, "r", adapter)
        outputs = _finish(engine)["r"]
        return sum(output.cached_tokens for output in outputs)

    assert [cached(adapter) for adapter in ("", "every", "rs")] == [0, 0, 0]
    assert [cached(adapter) for adapter in ("", "every", "rs")] == [36, 36, 36]
    engine.change_adapters(UnloadAdapter(1, "every"))
    _load(engine, served, "every", folder="wide")
    assert cached("every") == 0


def test_an_unloaded_adapter_serves_its_requests_to_their_end(served: Served) -> None:
    """Its slot is not given away meanwhile, its name at once."""
    engine = served.engine()
    _load(engine, served, "every")
    _load(engine, served, "rs")
    _submit(engine, "running", "every")
    first = engine.step()

    assert engine.change_adapters(UnloadAdapter(1, "every")).adapters == ["rs"]
    assert _load(engine, served, "wide").error is None
    refused = _load(engine, served, "every")
    _submit(engine, "late", "every")
    outputs = _finish(engine)

    assert _tokens([*first, *outputs["running"]]) == served.expected("every", PROMPT)
    assert outputs["late"][0].error == "adapter must be one that is loaded, got 'every'"
    assert refused.error is not None
    assert "All 3 adapter slots" in refused.error
    assert _load(engine, served, "every").error is None


@pytest.mark.parametrize("quantization", ["int8", "fp8_dynamic"])
def test_adapters_add_to_quantised_products(tmp_path: Path, quantization: Quantization) -> None:
    """The adapter itself stays in float: its logits move as much as they do without."""
    served = _served(tmp_path, max_loras=1, quantization=quantization)
    engine = served.engine()
    _load(engine, served, "every")
    _submit(engine, "plain", "")
    _submit(engine, "adapted", "every")

    outputs = _finish(engine)

    assert _tokens(outputs["adapted"]) != _tokens(outputs["plain"])
    assert _tokens(outputs["adapted"])[:1] == served.expected("every", PROMPT)[:1]


def test_an_engine_without_slots_says_how_to_get_them(tmp_path: Path) -> None:
    served = _served(tmp_path, max_loras=0)
    engine = served.engine()

    refused = _load(engine, served, "every")

    assert refused.error == "The engine takes no adapters: PACELINE_ENGINE_MAX_LORAS is 0."
    assert refused.adapters == []


def _edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _rename(folder: Path, old: str, new: str) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = {name.replace(old, new): value for name, value in load_file(path).items()}
    save_file(tensors, path)


def _change(folder: Path, end: str, change: Any) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    name = next(name for name in sorted(tensors) if name.endswith(end))
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda f: (f / "adapter_config.json").unlink(), "has no adapter_config.json"),
        (lambda f: (f / "adapter_config.json").write_text("{"), "is no readable JSON"),
        (lambda f: (f / "adapter_config.json").write_text("[]"), "must hold a JSON object"),
        (lambda f: (f / "adapter_model.safetensors").unlink(), "no adapter_model.safetensors"),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(b"x"), "no whole safetensors"),
        (lambda f: _edit_config(f, peft_type="IA3"), "peft_type='IA3'; the engine runs only"),
        (lambda f: _edit_config(f, use_dora=True), "use_dora=True"),
        (lambda f: _edit_config(f, bias="all"), "bias='all'"),
        (lambda f: _edit_config(f, lora_alpha=None), "lora_alpha must be a number, got None"),
        (lambda f: _rename(f, "layers.2", "layers.9"), "layers.9.* which the model does not have"),
        (lambda f: _rename(f, "lora_A", "lora_embedding_A"), "lora_embedding_A"),
        (lambda f: _change(f, "lora_A.weight", lambda x: x[:2]), r"of one rank, got \[2, "),
        (lambda f: _change(f, "lora_A.weight", lambda x: x[:, :5]), "made for another model"),
        (lambda f: _change(f, "lora_B.weight", lambda x: x * torch.nan), "not numbers"),
    ],
)
def test_a_bad_adapter_is_refused_by_name(served: Served, damage: Any, says: str) -> None:
    """And nothing else changes: the engine goes on as it was."""
    damage(served.folder / "every")
    engine = served.engine()

    refused = _load(engine, served, "every")

    assert refused.adapters == []
    with pytest.raises(AssertionError, match=says):
        assert refused.error is None, refused.error


def test_names_and_ranks_are_checked(served: Served) -> None:
    engine = served.engine()
    make_tiny_adapter(served.folder / "huge", served.merged[""], seed=9, rank=9)
    _load(engine, served, "rs")

    errors = [
        _load(engine, served, "rs").error,
        _load(engine, served, "huge").error,
        engine.change_adapters(UnloadAdapter(1, "nobody")).error,
    ]

    assert errors == [
        "The adapter 'rs' is loaded already: unload it first.",
        "The adapter's rank is 9, at most 8 is allowed (PACELINE_ENGINE_MAX_LORA_RANK).",
        "There is no adapter 'nobody'; loaded are: rs.",
    ]


def test_an_adapter_takes_the_place_of_one_of_its_name(served: Served) -> None:
    """Without a free slot beside it, once no request needs the old one any more."""
    engine = served.engine()
    _load(engine, served, "every")
    _load(engine, served, "wide")
    _load(engine, served, "rs")
    path = str(served.folder / "wide")

    _submit(engine, "old", "every")
    engine.step()
    busy = engine.change_adapters(LoadAdapter(1, "every", path, replaces=True))
    old = _finish(engine)["old"]
    replaced = engine.change_adapters(LoadAdapter(1, "every", path, replaces=True))
    missing = engine.change_adapters(LoadAdapter(2, "rs", "/nowhere", replaces=True))

    assert busy.error is not None
    assert "All 3 adapter slots" in busy.error
    assert len(_tokens(old)) == NEW_TOKENS - 1  # and the one of the first step
    assert replaced.error is None
    assert missing.error == "/nowhere has no adapter_config.json: wanted is a folder of PEFT."
    assert dict(zip(missing.adapters, missing.paths, strict=True)) == {
        "every": path,
        "wide": path,
        "rs": str(served.folder / "rs"),
    }
    _submit(engine, "new", "every")
    _submit(engine, "kept", "rs")
    outputs = _finish(engine)
    assert _tokens(outputs["new"]) == served.expected("wide", PROMPT)
    assert _tokens(outputs["kept"]) == served.expected("rs", PROMPT)
