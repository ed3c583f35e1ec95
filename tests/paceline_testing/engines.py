"""Builders of engines without weights, and what they must answer."""

from collections.abc import Callable

from paceline_engine.drafting.draft_model import DraftModel
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.kv_cache.swap import Swapper
from paceline_engine.pacing.pacer import NoPacer, Pacer
from paceline_engine.scheduling import Gathering, Scheduling
from paceline_testing.clock import ManualClock
from paceline_testing.fake_runner import FakeRunner, LateRunner, next_token
from paceline_wire import ModelInfo, Output, Sampling, Submit
from paceline_wire.limits import Capacity, Lane, Limits


def a_capacity(
    *,
    max_batch_size: int = 8,
    max_token_budget: int = 64,
    num_blocks: int = 64,
    block_size: int = 4,
    max_model_len: int = 128,
) -> Capacity:
    """A small engine's capacity."""
    return Capacity(
        max_batch_size=max_batch_size,
        max_token_budget=max_token_budget,
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
    )


def a_model_info(*, vocab_size: int = 1000, eos_token_ids: tuple[int, ...] = ()) -> ModelInfo:
    """What the sidecar would know of the model without weights."""
    return ModelInfo(
        name="fake",
        family="llama",
        revision="0",
        dtype="float32",
        device="cpu",
        num_parameters=1,
        vocab_size=vocab_size,
        max_model_len=128,
        bos_token_id=None,
        eos_token_ids=list(eos_token_ids),
        kv_bytes_per_token=8,
        weight_bytes=4,
    )


def a_135m_info(device: str = "cpu") -> ModelInfo:
    """The embedded model's size, on any device."""
    return ModelInfo(
        name="tiny",
        family="llama",
        revision="",
        dtype="float32",
        device=device,
        num_parameters=134_515_008,
        vocab_size=49_152,
        max_model_len=4096,
        bos_token_id=1,
        eos_token_ids=[2],
        kv_bytes_per_token=46_080,
        weight_bytes=538_060_032,
    )


def a_submit(
    id: str = "a",
    prompt_ids: list[int] | None = None,
    *,
    max_tokens: int = 4,
    min_tokens: int = 0,
    ignore_eos: bool = False,
    stop_token_ids: tuple[int, ...] = (),
    lane: Lane = "interactive",
    deadline_at: float | None = None,
    cache_salt: str = "",
) -> Submit:
    """A request for a few tokens."""
    return Submit(
        id,
        [1, 2, 3] if prompt_ids is None else prompt_ids,
        Sampling(
            max_tokens=max_tokens,
            temperature=0.0,
            min_tokens=min_tokens,
            ignore_eos=ignore_eos,
            stop_token_ids=stop_token_ids,
        ),
        lane=lane,
        deadline_at=deadline_at,
        cache_salt=cache_salt,
    )


class EngineUnderTest:
    """An engine, its runner and its clock, and everything it has given so far."""

    def __init__(
        self,
        capacity: Capacity | None = None,
        *,
        info: ModelInfo | None = None,
        limits: Limits | None = None,
        pacer: Pacer | None = None,
        prefix_caching: bool = True,
        swapper: Callable[[FakeRunner], Swapper] | None = None,
        scheduling: Scheduling = "continuous",
        gathering: Gathering | None = None,
        draft_tokens: int = 0,
        draft_choice: Callable[[list[int]], int] | None = None,
        draft_pacer: Pacer | None = None,
        overlap: bool = False,
    ) -> None:
        """With `draft_choice` a second model drafts, and chooses tokens by it."""
        self.capacity = capacity or a_capacity()
        self.info = info or a_model_info()
        self.clock = ManualClock()
        self.runner = FakeRunner(self.capacity, self.info.vocab_size)
        self.draft_runner: FakeRunner | None = None
        self.proposer: DraftModel | None = None
        if draft_choice is not None:
            self.draft_runner = FakeRunner(self.capacity, self.info.vocab_size)
            self.draft_runner.choose = draft_choice  # type: ignore[method-assign, assignment] # by the test
            self.proposer = DraftModel(
                self.draft_runner, draft_pacer or NoPacer(), self.capacity, self.clock
            )
        self.swapper = None if swapper is None else swapper(self.runner)
        late = LateRunner(self.runner, self.capacity.max_batch_size)
        self.engine = Engine(
            late if overlap else self.runner,
            self.info,
            self.capacity,
            pacer or NoPacer(),
            limits=limits or Limits(self.capacity.max_batch_size, self.capacity.max_token_budget),
            clock=self.clock,
            options=EngineOptions(
                prefix_caching=prefix_caching,
                scheduling=scheduling,
                gathering=gathering,
                swapper=self.swapper,
                draft_tokens=draft_tokens,
                proposer=self.proposer,
                overlap=overlap,
            ),
        )
        self.outputs: dict[str, list[Output]] = {}
        self.finished: list[str] = []

    def submit(self, *submits: Submit) -> None:
        """Hand requests to the engine."""
        for submit in submits:
            self.engine.submit(submit)

    def step(self) -> list[Output]:
        """Run one step and keep what it gives."""
        given = self.engine.step()
        for output in given:
            self.outputs.setdefault(output.id, []).append(output)
            if output.finish is not None:
                self.finished.append(output.id)
        return given

    def run_until(self, is_done: Callable[[], bool], *, max_steps: int = 2000) -> int:
        """Step until something holds; how many steps it took."""
        for steps in range(max_steps):
            if is_done():
                return steps
            self.step()
        raise AssertionError(f"not done after {max_steps} steps")

    def run_to_end(self, *, max_steps: int = 2000) -> int:
        """Step until nothing is left to do; how many steps it took."""
        return self.run_until(lambda: self.engine.is_idle, max_steps=max_steps)

    def tokens(self, id: str) -> list[int]:
        """The output tokens of one request so far."""
        return [token for output in self.outputs.get(id, []) for token in output.token_ids]

    def finish(self, id: str) -> str | None:
        """Why a request ended; None while it runs."""
        outputs = self.outputs.get(id)
        return outputs[-1].finish if outputs else None


def answer(submit: Submit, info: ModelInfo, max_model_len: int) -> list[int]:
    """What a request must be answered with, whatever runs beside it."""
    sampling = submit.sampling
    token_ids = list(submit.prompt_ids)
    output: list[int] = []
    while len(output) < sampling.max_tokens and len(token_ids) < max_model_len:
        token = next_token(token_ids, info.vocab_size)
        token_ids.append(token)
        output.append(token)
        is_end = token in info.eos_token_ids and not sampling.ignore_eos
        if len(output) >= sampling.min_tokens and (is_end or token in sampling.stop_token_ids):
            break
    return output
