"""What would help, judged from a pod's own figures."""

from dataclasses import replace
from typing import Any

import pytest

from paceline_sidecar.live.advice import Snapshot, advise, bound

BUSY = Snapshot(
    running=12,
    waiting=3,
    people_waiting=3,
    kv_share=0.6,
    batch_size=16,
    queued=5,
    queue_places=100,
    ended=60,
    preempted=0,
    prompt_tokens=4000,
    output_tokens=9000,
    padding_tokens=0,
    looked_up=5000,
    found=1000,
    is_late=False,
)


def test_nothing_stands_out_in_a_pod_that_is_well() -> None:
    """Advice that is always there is read by nobody."""
    assert advise(BUSY) == ()


def test_nothing_is_asked_of_an_idle_pod() -> None:
    """Zero requests and zero tokens are no cause for anything."""
    idle = Snapshot(0, 0, 0, 0.0, 16, 0, 100, 0, 0, 0, 0, 0, 0, 0, is_late=False)

    assert advise(idle) == ()
    assert bound(idle) == "load"


@pytest.mark.parametrize(
    ("changed", "lever", "told"),
    [
        ({"queued": 81}, "replicas", "81 of the 100 places"),
        ({"kv_share": 0.97}, "kvCacheMemory", "12 running sequences hold 97% of the KV memory"),
        ({"preempted": 7}, "swapMemory", "7 sequences lost their KV blocks to others"),
        ({"running": 16}, "tuning.batchSize.max", "16 sequences run, as many as the limit lets"),
        ({"padding_tokens": 39_000}, "Continuous", "75% of the tokens computed"),
        ({"prompt_tokens": 20_000, "found": 100}, "prefixCaching", "2% of those looked up"),
    ],
    ids=["queue", "kv", "preemptions", "batch", "padding", "prefixes"],
)
def test_each_cause_is_named_with_its_figures(
    changed: dict[str, Any], lever: str, told: str
) -> None:
    """One cause, one line: the lever, and what was seen."""
    (found,) = advise(replace(BUSY, **changed))

    assert lever in found.lever
    assert told in found.text


@pytest.mark.parametrize(
    "changed",
    [
        {"queued": 80},
        {"kv_share": 0.97, "people_waiting": 0},
        {"kv_share": None},
        {"preempted": 6},
        {"running": 16, "people_waiting": 0},
        {"padding_tokens": 13_000},
        {"prompt_tokens": 20_000, "found": 100, "people_waiting": 0},
        {"prompt_tokens": 8000, "found": 100},
    ],
    ids=[
        *(
            "queue",
            "kv-for-the-batch-lane",
            "kv-unknown",
            "preemptions",
            "limit-for-the-batch-lane",
        ),
        *("padding", "prompts-in-time", "mostly-outputs"),
    ],
)
def test_what_costs_nobody_anything_is_not_told(changed: dict[str, Any]) -> None:
    """A full cache or a full batch for which only the batch lane waits is well used."""
    assert advise(replace(BUSY, **changed)) == ()


def test_late_first_tokens_make_prompts_count_without_a_queue() -> None:
    """They wait in the step then, not in the queue."""
    seen = replace(BUSY, people_waiting=0, prompt_tokens=20_000, found=100, is_late=True)

    assert len(advise(seen)) == 1


def test_full_memory_is_told_before_the_limit_that_it_makes_needless() -> None:
    """A higher limit would not help there."""
    seen = replace(BUSY, running=16, kv_share=0.99)

    assert [each.lever.split(",")[0] for each in advise(seen)] == ["engine.kvCacheMemory"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"waiting": 0}, "load"),
        ({"kv_share": 0.96, "running": 16}, "KV memory"),
        ({"running": 17}, "batch size"),
        ({}, ""),
    ],
    ids=["nothing-waits", "memory", "limit", "unknown"],
)
def test_the_bound_is_what_holds_the_batch(changed: dict[str, Any], told: str) -> None:
    """Where the figures do not tell, nothing is made up."""
    assert bound(replace(BUSY, **changed)) == told
