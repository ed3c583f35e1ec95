"""One request wakes a service: gateway, Prometheus, KEDA, operator and pod, all real, in one run.

`paceline_testing.woken_service` applies the examples in the order of docs/gateways.md.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from paceline_testing.woken_service import NAME, WokenService, woken_service

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(2400, func_only=True)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WokenService]:
    """The service, with everything that lets it sleep and wakes it."""
    folder: Path = tmp_path_factory.mktemp("from-zero")
    with woken_service(folder) as woken:
        yield woken


def test_the_first_request_wakes_the_service_and_is_answered(service: WokenService) -> None:
    """Nobody asks: no pod is left. A client that asks once then gets its answer, and so twice."""
    for _ in range(2):
        service.slept()

        assert _asked(service.url) == 200

        assert service.wanted() == 1


def test_many_that_find_no_pod_are_all_answered(service: WokenService) -> None:
    """They wait together, and one pod answers them."""
    service.slept()

    with ThreadPoolExecutor(20) as pool:
        codes = list(pool.map(lambda _: _asked(service.url), range(20)))

    assert codes == [200] * 20


def _asked(url: str) -> int:
    body = {"model": NAME, "prompt": "One, two, three,", "max_tokens": 4}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=600).status_code
