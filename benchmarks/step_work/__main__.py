"""Every launch of a step with its bytes, and the times that follow: part of `make gpu-compile`.

`PYTHONPATH=benchmarks:tests python -m step_work`; models may be named. Nothing runs on a GPU, and
no time is measured. With `--json GPU` the predictions of the suite's steps on that GPU alone, with
`--page` the rows of the table in docs/gpu.md.
"""

import json
import sys

from gpu_suite import names
from paceline_engine.model.row_stages import possible_plans
from step_work import before, fused, page, predictions, ranks
from step_work.gpus import gpu_named
from step_work.steps import DECODE, IN_GRAPH, MIXED, PREFILL, fake_model
from step_work.work import table_of, work_of

MODELS = ("qwen2.5-0.5b", "llama-3.2-1b", "llama-3.1-8b")


def main() -> None:
    """Print a table for each step of each model, and the predictions."""
    if sys.argv[1:2] == ["--json"]:
        print(_as_json(sys.argv[2]))
        return
    if sys.argv[1:2] == ["--page"]:
        print(*page.rows({name: fake_model(name) for name in MODELS}), sep="\n")
        return
    for name in sys.argv[1:] or MODELS:
        model = fake_model(name)
        works = [work_of(model, step) for step in (DECODE, MIXED, IN_GRAPH, PREFILL)]
        everything = fused.fused_work(model, DECODE, possible_plans(model.decoder)[0])
        for work in (*works, everything):
            print(table_of(work), end="\n\n")
        print(before.table_of(works), end="\n\n")
        print(predictions.table_of(model), end="\n\n")
        print(fused.table_of(model), end="\n\n")
        print(ranks.table_of(name), end="\n\n")
    print(predictions.assumptions(), end="\n\n")
    print("Published by others:", *(f"* {each}" for each in predictions.PUBLISHED), sep="\n")


def _as_json(device: str) -> str:
    gpu = gpu_named(device)
    if gpu is None:
        return "[]"
    return json.dumps(
        [
            {"name": name, "ms": [1e3 * each for each in (times.likely, times.best, times.worst)]}
            for model in map(fake_model, names.MODELS)
            for name, times in predictions.figures_of(model, gpu)
        ]
    )


if __name__ == "__main__":
    main()
