"""vLLM in a process of its own: lists of requests come as lines of JSON, rates go back.

    VLLM_PYTHON benchmarks/peers/answer_vllm.py ENGINE_ARGUMENTS

The arguments are those of `vllm.LLM`, as JSON. The first line out says which release is ready; each
line in holds `temperature` and `asked`, a list of (prompt tokens, output tokens); each line out
tells the output tokens and the seconds that they took.
"""

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Answer every line on standard input until it ends."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    import vllm  # noqa: PLC0415 - it prints

    engine = vllm.LLM(**json.loads(sys.argv[1]))
    with os.fdopen(answers, "w", encoding="utf-8") as out:
        print(json.dumps({"version": vllm.__version__}), file=out, flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            params = [
                vllm.SamplingParams(
                    temperature=order["temperature"],
                    max_tokens=num_output,
                    ignore_eos=True,
                    detokenize=False,
                )
                for _, num_output in order["asked"]
            ]
            print(json.dumps(_answered(engine, order["asked"], params)), file=out, flush=True)


def _answered(engine: Any, asked: list[tuple[list[int], int]], params: list[Any]) -> dict[str, Any]:
    prompts = [{"prompt_token_ids": prompt} for prompt, _ in asked]
    started = time.perf_counter()
    outputs = engine.generate(prompts, params, use_tqdm=False)
    elapsed_s = time.perf_counter() - started
    num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    return {"tokens": num_tokens, "seconds": elapsed_s}


if __name__ == "__main__":  # its workers import this file again
    main()
