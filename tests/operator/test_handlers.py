"""What the watch tells is kept under the service that a label names, and queues that service."""

from typing import Any

import kopf
import pytest

from paceline_api.labels import SERVICE_LABEL
from paceline_operator.handlers import owned_changed
from paceline_operator.metrics import Metrics
from paceline_operator.operation import Operation
from paceline_operator.settings import OperatorSettings
from paceline_operator.workqueue import WorkQueue
from paceline_testing.clock import ManualClock


def _pod(labels: dict[str, str]) -> Any:
    metadata = {"namespace": "default", "name": "pod", "uid": "1", "resourceVersion": "1"}
    return {"kind": "Pod", "metadata": metadata | {"labels": labels}}


async def _tell(operation: Operation, kind: str, pod: Any) -> None:
    event: Any = {"type": kind, "object": pod}
    await owned_changed(body=kopf.Body(pod), event=event, memo=operation)


@pytest.mark.parametrize("name", ["quick", ""])
async def test_what_carries_the_label_is_kept_until_it_is_gone(name: str) -> None:
    """Even under no name: the watch probe lists it, and would miss it for ever."""
    clock = ManualClock()
    operation = Operation(OperatorSettings(), Metrics(), queue=WorkQueue(clock))

    await _tell(operation, "ADDED", _pod({SERVICE_LABEL: name}))
    assert [kind for kind, _ in operation.index.owned()] == ["Pod"]
    clock.advance(1)
    assert await operation.queue.get() == f"default/{name}"

    await _tell(operation, "DELETED", _pod({SERVICE_LABEL: name}))
    assert not [*operation.index.owned()]


async def test_what_loses_the_label_is_no_longer_its_services() -> None:
    operation = Operation(OperatorSettings(), Metrics(), queue=WorkQueue(ManualClock()))

    await _tell(operation, "ADDED", _pod({SERVICE_LABEL: "quick"}))
    await _tell(operation, "MODIFIED", _pod({}))

    assert not [*operation.index.owned()]
