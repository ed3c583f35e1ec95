"""Telemetry as a pod gives it, every field with a plausible default."""

from typing import Any

from paceline_tuner import telemetry as answers


def a_limits(**fields: Any) -> answers.LimitsAnswer:
    """Batch 16 of 64, budget 512 of 2,048."""
    held = answers.LimitValues(16, 512, 200.0)
    base: dict[str, Any] = {
        "requested": held,
        "effective": held,
        "certified": held,
        "capacity": answers.CapacityValues(64, 2048, 4096, 16, 4096),
        "epoch": 3,
        "config_hash": "one",
    }
    return answers.LimitsAnswer(**(base | fields))


def a_fit(**fields: Any) -> answers.ModelFit:
    """30 ms, 2 ms a token: a trusted laptop."""
    base: dict[str, Any] = {
        "theta": (30.0, 2.0, 0.0, 2.0, 50.0),
        "prior": (30.0, 2.0, 0.0, 2.0, 50.0),
        "knee": 256,
        "correction": (1.0,) * 17,
        "fast": 1.0,
        "q_r": 1.1,
        "samples": 900,
        "mape": 0.05,
        "valid": True,
    }
    return answers.ModelFit(**(base | fields))


def a_step(seq: int, at: float, **fields: Any) -> answers.Step:
    """Eight decodes and nothing else."""
    base: dict[str, Any] = {
        "wall_ms": 50.0,
        "decode": 8,
        "prefill": 0,
        "context": 2000,
        "attention": 0,
        "running": 8,
        "waiting": 0,
        "epoch": 3,
    }
    return answers.Step(seq=seq, at=at, **(base | fields))


def a_request(seq: int, finished_at: float, **fields: Any) -> answers.RequestRecord:
    """A request that was served in three seconds, well within its targets."""
    base: dict[str, Any] = {
        "arrived_at": finished_at - 3.0,
        "prompt_tokens": 200,
        "output_tokens": 40,
        "outcome": "ok",
        "ttft_ms": 400.0,
        "tpot_ms": 60.0,
        "itl_max_ms": 90.0,
        "epoch": 3,
    }
    return answers.RequestRecord(seq=seq, finished_at=finished_at, **(base | fields))


def a_telemetry(now: float, **fields: Any) -> answers.Telemetry:
    """A ready pod with eight running requests."""
    base: dict[str, Any] = {
        "instance": "a",
        "next": 7,
        "lost": 0,
        "ready": True,
        "limits": a_limits(),
        "load": answers.Load(running=8, waiting=0, waiting_tokens=0, output_tokens=500),
        "model": a_fit(),
        "info": answers.EngineInfo(device="cpu"),
    }
    return answers.Telemetry(now=now, **(base | fields))
