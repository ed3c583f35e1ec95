"""Decodes whose products of few rows are fused, beside separate ones, and which a start would take.

The engine times every plan at start, over all layers without their attentions, and takes the
fastest where it gains enough (decision 83). Here the model is its clock.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from paceline_engine.loading.row_trial import CLASSES, fastest_of
from paceline_engine.model.row_stages import Fusions, possible_plans
from step_work.gpus import GPUS, Gpu
from step_work.steps import DECODE, FakeModel, Step
from step_work.times import launch_s, predict
from step_work.work import StepWork, work_of

_SEPARATE: Fusions = frozenset()
_ATTENTION = {"decode", "rope_and_store_kv"}
Plans = Mapping[Fusions, StepWork]
"""A step by what it fuses; without anything first, then the most first."""


def fused_work(model: FakeModel, step: Step, plan: Fusions) -> StepWork:
    """Run a step that fuses this."""
    with model.fusing(plan):
        work = work_of(model, step)
    name = f"{step.name}, products {name_of(plan)}"
    return replace(work, step=replace(step, name=name))


def name_of(plan: Fusions) -> str:
    """Return the plan's name, as the log of a start has it."""
    return f"with {'+'.join(sorted(plan))} fused" if plan else "separate"


def by_plan(model: FakeModel, step: Step) -> Plans:
    """Run a step with every plan that the model allows."""
    plans = (_SEPARATE, *possible_plans(model.decoder))
    return {plan: fused_work(model, step, plan) for plan in plans}


def timed_s(work: StepWork, gpu: Gpu) -> float:
    """Return the likely time of what a start times: all between the first and last attention."""
    labels = [one.label for one in work.launches]
    first, last = labels.index("decode"), len(labels) - 1 - labels[::-1].index("decode")
    between = work.launches[first + 1 : last]
    return sum(launch_s(one, gpu, "likely") for one in between if one.label not in _ATTENTION)


def taken(plans: Plans, gpu: Gpu) -> Fusions:
    """Return the plan that a start on this GPU would take, were the model its clock."""
    return fastest_of({plan: timed_s(work, gpu) for plan, work in plans.items()})


def table_of(model: FakeModel) -> str:
    """Say what each plan moves and takes, and which of them a start would take."""
    lines = [f"{model.name}: PREDICTED, nothing of this is measured"]
    for rows in (rows for rows in CLASSES if rows <= DECODE.num_rows):
        step = Step(f"{rows} decodes at context 1k", DECODE.contexts[:rows])
        lines += _lines(step, by_plan(model, step))
    return "\n".join(lines)


def _lines(step: Step, plans: Plans) -> Iterator[str]:
    gpu = GPUS["H200"]
    yield f"  {step.name}; what a start on an {gpu.name} times of them, then the whole step"
    for plan, work in plans.items():
        layers = f"{len(work.launches)} launches, surplus {work.surplus:.1%}"
        timed = f"{1e3 * timed_s(work, gpu):.2f} ms"
        yield f"    {name_of(plan):24} {layers:30} {timed:9} {predict(work, gpu)}"
    for each in GPUS.values():
        yield f"    the start's timing by the model, {each.name}: {name_of(taken(plans, each))}"
