"""The peer: transformers on the same weights, padded and with its continuous batching."""

import os
import time
from pathlib import Path
from typing import Any

import torch

from paceline_engine.checkpoint.hub import Hub
from paceline_engine.checkpoint.uri import Places, locate
from serving_workload import Run, Timeline, Workload


def padded_generate(model: Any) -> Run:
    """Run `generate` of transformers in padded batches; a token is timed where it is chosen."""

    class Clock:
        def __init__(self) -> None:
            self.calls: list[float] = []

        def put(self, _tokens: torch.Tensor) -> None:
            self.calls.append(time.perf_counter())

        def end(self) -> None:
            pass

    class LastLogits:
        """Called once a step by `generate`: the only hook it offers with a batch."""

        def __init__(self, clock: Clock) -> None:
            self.clock = clock

        def __call__(self, _ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            self.clock.put(scores)
            return scores

    def run(prompts: list[list[int]], workload: Workload) -> list[Timeline]:
        from transformers import LogitsProcessorList  # noqa: PLC0415 - seconds to import

        lines = []
        for first in range(0, len(prompts), workload.concurrency):
            group = prompts[first : first + workload.concurrency]
            longest = max(map(len, group))
            ids = torch.tensor([[2] * (longest - len(p)) + p for p in group])
            mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in group])
            clock = Clock()
            sent = time.perf_counter()
            with torch.inference_mode():
                model.generate(
                    ids,
                    attention_mask=mask,
                    max_new_tokens=workload.output_tokens,
                    min_new_tokens=workload.output_tokens,
                    do_sample=False,
                    pad_token_id=2,
                    logits_processor=LogitsProcessorList([LastLogits(clock)]),
                )
            lines += [Timeline(sent, tuple(clock.calls))] * len(group)
        return lines

    return run


def continuous_batching(model: Any) -> Run:
    """Run continuous batching of transformers; a token is timed as it is streamed."""

    def run(prompts: list[list[int]], workload: Workload) -> list[Timeline]:
        from transformers import GenerationConfig  # noqa: PLC0415 - seconds to import

        config = GenerationConfig(
            max_new_tokens=workload.output_tokens,
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=2,
        )
        return _stream(model, config, prompts, workload)

    return run


def _stream(
    model: Any, config: Any, prompts: list[list[int]], workload: Workload
) -> list[Timeline]:
    sent: dict[str, float] = {}
    tokens: dict[str, list[float]] = {}
    with model.continuous_batching_context_manager(generation_config=config) as manager:

        def send() -> None:
            number = len(sent)
            id_ = f"r{number}"
            sent[id_], tokens[id_] = time.perf_counter(), []
            manager.add_request(
                prompts[number],
                request_id=id_,
                max_new_tokens=workload.output_tokens,
                streaming=True,
            )

        for _ in range(min(workload.concurrency, len(prompts))):
            send()
        finished = 0
        while finished < len(prompts):
            output = manager.get_result(timeout=60)
            if output is None:
                continue
            now = time.perf_counter()
            times = tokens[output.request_id]
            times += [now] * (len(output.generated_tokens) - len(times))
            if output.is_finished():
                finished += 1
                if len(sent) < len(prompts):
                    send()
    return [Timeline(sent[id_], tuple(tokens[id_])) for id_ in sent]


def transformers_model() -> Any:
    """The embedded model, loaded by transformers from the same file, in float32."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoModelForCausalLM, GgufConfig  # noqa: PLC0415 - seconds to import

    places = Places(models_dir=None, model_mount=Path("/model"), hub=Hub(Path("/cache")))
    path = locate("builtin://smollm2-135m-instruct", None, places).path
    return AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        quantization_config=GgufConfig(gguf_file=path.name, dequantize=True),
        dtype=torch.float32,
    ).eval()
