"""A plugin for pytest: of what is collected, only the tests that run on a GPU where one is."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what computes on a CPU wherever it runs."""
    wanted = [item for item in items if _is_on_device(item)]
    left_out = [item for item in items if not _is_on_device(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = wanted


def _is_on_device(item: pytest.Item) -> bool:
    fixtures: list[str] = getattr(item, "fixturenames", [])
    return "device" in fixtures or item.get_closest_marker("gpu") is not None
