"""The simulated engine's state as arrays, so that compiled code can read and write it."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline_sim.requests import Requests

NEW, WAITING, PREFILL, DECODE, ENDED = range(5)
UNFINISHED, OK, SHED, FAILED = range(4)
SLICE_S = 5.0
GAMMA = 1.01 / 0.99
"""Ratio of one bin's edges: bin i counts gaps in (GAMMA^(i-1), GAMMA^i] milliseconds."""
FIRST_BIN = -256
"""The bin of column 0."""
NUM_BINS = 1024
MOST_SLICES = 1 << 14
"""Rows of the gap counts, a day: what comes later is counted in the last."""
GAP_SLICES_AHEAD = 240
"""Free rows that the gap counts keep, so that no step outlasts them: 20 minutes."""

JOB = np.dtype(
    [
        ("arrival_s", "f8"),
        ("turn_s", "f8"),  # orders those that wait in its lane
        ("patience_s", "f8"),  # it is shed that waits longer for its first admission
        ("prompt", "i8"),
        ("output", "i8"),
        ("cached", "i8"),
        ("lane", "i8"),
        ("state", "i8"),
        ("outcome", "i8"),
        ("computed", "i8"),  # tokens whose keys and values are held
        ("tokens", "i8"),  # output tokens given
        ("blocks", "i8"),
        ("grant", "i8"),  # prefill tokens in the present step
        ("hits", "i8"),  # prompt tokens found in the prefix cache when first admitted
        ("preemptions", "i8"),
        ("scheduled_s", "f8"),  # first admission; nan before
        ("first_s", "f8"),  # first token
        ("last_s", "f8"),
        ("finished_s", "f8"),
        ("itl_max_ms", "f8"),
        ("epoch", "i8"),
    ]
)


class StepFields(NamedTuple):
    """One step: first the operator's `Step`, field by field, then what only the engine's has."""

    seq: int
    at: float
    wall_ms: float
    decode: int
    prefill: int
    context: int
    attention: int
    running: int
    waiting: int
    waiting_tokens: int
    preemptions: int
    epoch: int
    paced_tokens: int
    predicted_ms: float
    clean: bool
    host_ms: float
    kv_used: int
    token_budget: int


_CODES = {int: "i8", float: "f8", bool: "?"}
STEP = np.dtype([(name, _CODES[kind]) for name, kind in StepFields.__annotations__.items()])
LANE = np.dtype(
    [
        ("head", "i8"),  # of its queue
        ("tail", "i8"),
        ("stacked", "i8"),  # preempted requests, which go first
        ("tokens", "i8"),  # known ones of its waiting requests
        ("held", "i8"),  # running requests
        ("served", "f8"),  # prefill tokens over the lane's share
        ("share", "f8"),
        ("was_open", "?"),
        ("is_open", "?"),
        ("cursor", "i8"),  # into the running ones
    ]
)
TOTALS = np.dtype(
    [
        ("now", "f8"),
        ("steps", "i8"),
        ("arrived", "i8"),
        ("ended", "i8"),
        ("running", "i8"),
        ("granted", "i8"),
        ("free_blocks", "i8"),
        ("num_blocks", "i8"),
        ("block_size", "i8"),
        ("max_model_len", "i8"),
        ("queued_tokens", "i8"),  # known tokens of waiting requests
        ("preempted", "i8"),  # since the last step
        ("displaced", "i8"),  # of the next step: batch requests that gave way to arrivals
        ("decode", "i8"),  # of the next step
        ("context", "i8"),
        ("wanted", "i8"),
        ("prompts", "i8"),  # listed in `ahead`
        ("preemptions", "i8"),
        ("prompt_tokens", "i8"),
        ("output_tokens", "i8"),
        ("prefix_queries", "i8"),
        ("prefix_hits", "i8"),
        ("max_batch_size", "i8"),
        ("token_budget", "i8"),
        ("epoch", "i8"),
        ("target_ms", "f8"),  # wanted time of a step; nan without
        ("q_r", "f8"),  # of a settled pacer
        ("min_prefill", "i8"),  # of a settled pacer
        ("pace_s", "f8"),  # wanted time per token of each request; 0 without
        ("slack_ms", "f8"),  # of the next step; nan without a pace or without decodes
        ("shed_s", "f8"),
        ("is_patient", "?"),  # no request has a patience of its own
        ("collapse_s", "f8"),
        ("prefill_end", "i8"),  # running ones before this step's admissions
    ]
)
Records = npt.NDArray[np.void]
Fields = Any
"""`Records` whose fields compiled code reads as attributes, which numpy's types do not know."""
Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]


class EngineArrays(NamedTuple):
    """Everything that a step reads or writes."""

    jobs: Fields
    steps: Fields
    lanes: Fields
    totals: Fields
    """One record."""
    queue: Whole
    """Jobs by lane, in the order of their turns [2, jobs]."""
    stack: Whole
    """Preempted jobs by lane [2, jobs]."""
    running: Whole
    """Jobs that hold blocks, in their order of admission [jobs + 1]."""
    granted: Whole
    """Jobs that the present step prefills [jobs + 1]."""
    ahead: Whole
    """Of the first prompts of the next step: tokens left, and before them [MOST_PROMPTS, 2]."""
    ended: Whole
    """Jobs in the order of their end [jobs]."""
    gaps: Whole
    """Counts of inter-token gaps [slices, NUM_BINS]."""
    dense_ms: Real
    costs: Real
    """`StepCosts`, field by field."""
    noise: Real
    """A factor per step."""
    disturbances: Real
    """`Disturbance`, field by field, one a row."""


def jobs_of(requests: Requests) -> Records:
    """Nothing has arrived yet."""
    jobs = np.zeros(len(requests), JOB)
    for name in ("arrival_s", "prompt", "output", "cached", "lane"):
        jobs[name] = getattr(requests, name)
    jobs["turn_s"] = requests.arrival_s if requests.turn_s is None else requests.turn_s
    jobs["patience_s"] = np.inf if requests.patience_s is None else requests.patience_s
    for name in ("scheduled_s", "first_s", "last_s", "finished_s"):
        jobs[name] = np.nan
    return jobs
