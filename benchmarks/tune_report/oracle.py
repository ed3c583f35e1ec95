"""Capacity, the best fixed limits of a grid, and searches with as many trials."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import optuna

from tune_report import episode
from tune_report.arms.arm import static
from tune_report.cache import Code
from tune_report.score import EpisodeScore, score
from tune_report.settings import ServingSetting
from tune_report.workloads import ReportWorkload, steady, workload_named

Pair = tuple[int, int]
Method = Literal["random", "optuna"]
TRIALS = 40
_TRAINING_SEED = 1000
"""Searches see this seed and none of those they are judged by, as a search before the rollout."""
_CAPACITY_SEED = 2000
_CAPACITY_S = 240.0
_ATTAINED = 0.99
_DOUBLINGS, _HALVINGS = 12, 6
_GPU_BATCHES = (32, 64, 96, 128, 192, 256, 384, 512, 1024)
_GPU_BUDGETS = (128, 256, 384, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 3072, 4096, 8192)
_PROBED_BATCHES = (8, 16, 32, 64, 128, 192, 256)
_FEW_ROWS = (8, 12, 16, 24, 32, 48, 64, 128)
"""Where prompts are long: past 64 rows KV memory binds before the batch size does."""
"""The batch sizes of the grid by which capacity is found: dozens of rates are tried."""
_CPU_BATCHES = (4, 8, 12, 16, 24, 32, 48, 64)
_CPU_BUDGETS = (16, 32, 48, 64, 80, 96, 128, 160, 192, 256, 512, 1024, 2048)


def grid(setting: ServingSetting) -> tuple[Pair, ...]:
    """Max batch sizes and token budgets, within what the setting allocates."""
    is_small = setting.max_batch_size <= _CPU_BATCHES[-1]
    batches = _CPU_BATCHES if is_small else _FEW_ROWS if setting.has_few_rows else _GPU_BATCHES
    budgets = _CPU_BUDGETS if is_small else _GPU_BUDGETS
    return tuple((n, b) for n in batches for b in budgets if b >= n)


@dataclass(frozen=True, slots=True)
class GridCapacity:
    """The most requests per second that any pair of the grid serves at 99 %, steadily."""

    workload: str
    """Whose setting and mix it is of."""
    trace: Path | None

    def code(self, code: Code) -> str:
        """Fixed limits on the simulated engine."""
        return code.engine

    def run(self) -> float:
        """Double until it fails, then halve the interval."""
        workload = workload_named(self.workload, self.trace)
        low = high = 0.25
        for _ in range(_DOUBLINGS):
            if not _is_served(workload, high):
                break
            low, high = high, 2 * high
        for _ in range(_HALVINGS):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if _is_served(workload, middle) else (low, middle)
        return float(f"{low:.3g}")


def _is_served(workload: ReportWorkload, rps: float) -> bool:
    """Tell whether some pair keeps every target for 99 of 100."""
    probe = steady(workload.setting, 1.0, workload.mix, _CAPACITY_S)
    pairs = [pair for pair in grid(workload.setting) if pair[0] in _PROBED_BATCHES]
    return any(_attained(probe, pair, rps) >= _ATTAINED for pair in pairs)


def _attained(workload: ReportWorkload, pair: Pair, rps: float) -> float:
    pods = episode.run(workload, static(*pair), _CAPACITY_SEED, rps)
    return score(workload, pods).attainment.least


@dataclass(frozen=True, slots=True)
class Search:
    """Fixed limits for one workload, found with a number of trials on a training seed."""

    workload: str
    method: Method
    unit_rps: float
    trace: Path | None

    def code(self, code: Code) -> str:
        """Fixed limits on the simulated engine."""
        return code.engine

    def run(self) -> Pair:
        """Search."""
        workload = workload_named(self.workload, self.trace)
        sampler: optuna.samplers.BaseSampler = (
            optuna.samplers.RandomSampler(seed=1)
            if self.method == "random"
            else optuna.samplers.TPESampler(seed=1)
        )
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.optimize(lambda trial: self._trial(workload, trial), n_trials=TRIALS)
        return _pair(study.best_params, workload.setting)

    def _trial(self, workload: ReportWorkload, trial: optuna.Trial) -> float:
        setting = workload.setting
        trial.suggest_int("batch", 4, setting.max_batch_size, log=True)
        trial.suggest_int("budget", 16, setting.max_token_budget, log=True)
        arm = static(*_pair(trial.params, setting))
        pods = episode.run(workload, arm, _TRAINING_SEED, self.unit_rps)
        return score(workload, pods).good_rps


def _pair(params: dict[str, int], setting: ServingSetting) -> Pair:
    batch = params["batch"]
    return batch, min(max(params["budget"], batch), setting.max_token_budget)


def best(scores: dict[Pair, list[EpisodeScore]]) -> Pair:
    """The pair with the most good requests over its seeds."""
    return max(scores, key=lambda pair: float(np.mean([s.good for s in scores[pair]])))
