"""What each launch of a step moves and computes, by step and model: part of `make gpu-compile`.

`PYTHONPATH=benchmarks:tests python -m step_work`; models may be named. Nothing runs on a GPU.
"""

import sys

from step_work.steps import DECODE, MIXED, PREFILL, fake_model
from step_work.work import table_of, work_of

MODELS = ("qwen2.5-0.5b", "llama-3.2-1b", "llama-3.1-8b")


def main() -> None:
    """Print a table for each step of each model."""
    for name in sys.argv[1:] or MODELS:
        model = fake_model(name)
        for step in (DECODE, MIXED, PREFILL):
            print(table_of(work_of(model, step)), end="\n\n")


if __name__ == "__main__":
    main()
