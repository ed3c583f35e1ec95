"""The folder of examples as somebody reads and applies it."""

import pytest

from paceline_testing.examples import EXAMPLES, services_of

_INDEX = (EXAMPLES / "README.md").read_text(encoding="utf-8")
_FILES = sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.yaml"))
_FULL = ["placement/time-slicing.yaml", "placement/shared-claim.yaml", "placement/kueue.yaml"]


@pytest.mark.parametrize("name", [name for name in _FILES if not name.startswith("pipelines/")])
def test_the_index_has_every_example(name: str) -> None:
    """Those of pipelines have a page of their own."""
    assert f"]({name})" in _INDEX


@pytest.mark.parametrize("name", _FULL)
def test_a_pod_leaves_first_where_nothing_is_free_for_another(name: str) -> None:
    """The new one of a rollout would wait for ever for the share that the old one has."""
    for service in services_of(name):
        assert service["spec"]["rollout"] == {"maxSurge": 0, "maxUnavailable": 1}
