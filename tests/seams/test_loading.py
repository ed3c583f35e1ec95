"""What the sidecar says of a loading engine is what `paceline up` draws its bar from."""

import json

import pytest

from paceline_cli.up.loading import LoadingStage, loading_stage, missing_words
from paceline_sidecar.zmq_engine import loading_words
from paceline_wire import Loading


@pytest.mark.parametrize(
    ("stage", "fraction"), [("fetching", 0.0), ("loading weights", 0.43), ("warming up", 1.0)]
)
def test_a_stage_and_its_fraction_are_understood(stage: str, fraction: float) -> None:
    """Through the body of `/health/ready`, beside whatever else is missing."""
    body = json.dumps({"missing": [loading_words(Loading(stage, fraction)), "draining"]})

    words = missing_words(body)

    assert words == f"not ready: the engine is loading: {stage} {fraction:.0%}; draining"
    assert loading_stage(words) == LoadingStage(stage, fraction)


def test_what_is_no_loading_draws_no_bar() -> None:
    """Nor does an answer that is none of the sidecar's."""
    assert loading_stage("serving") is None
    assert missing_words("<html>bad gateway</html>") == "not ready: <html>bad gateway</html>"
    assert missing_words("[]") == "not ready: []"
