"""A few steps before the first request: libraries choose their algorithms, buffers are taken."""

from paceline_engine.core.batch import Batch, Runner, ScheduledChunk
from paceline_engine.core.request import Request
from paceline_wire import Sampling
from paceline_wire.limits import Capacity

_PROMPT_TOKENS = 64


def warm_up(runner: Runner, capacity: Capacity) -> None:
    """Run a prompt and a decode as a request would; block 0 and row 0 are free after."""
    length = min(_PROMPT_TOKENS, capacity.block_size, capacity.max_model_len - 1)
    request = Request(
        id="warm-up",
        token_ids=[0] * (length + 1),
        num_prompt_tokens=length,
        sampling=Sampling(max_tokens=2, temperature=1.0, top_p=0.9),
        row=0,
        block_ids=[0, 0],
    )
    for _ in range(2):
        prefill = ScheduledChunk(request, 0, length, samples=True, is_decode=False)
        runner.launch(Batch((prefill,), num_decodes=0)).result()
        decode = ScheduledChunk(request, length, 1, samples=True, is_decode=True)
        runner.launch(Batch((decode,), num_decodes=1)).result()
