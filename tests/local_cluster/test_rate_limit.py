"""The rate limit service that is built here, beside the Envoy Gateway that deploys it."""

import re

from local_cluster.go_binaries import ENVOY_GATEWAY, RATE_LIMIT, Module


def test_the_rate_limit_service_is_the_version_of_envoy_gateway() -> None:
    """The two speak a configuration of their own, so they are raised together."""
    assert _version(RATE_LIMIT) == _version(ENVOY_GATEWAY)


def _version(module: Module) -> str:
    text = (module.folder / "go.mod").read_text()
    (found,) = re.findall(r"github\.com/envoyproxy/ratelimit (\S+)", text)
    return str(found)
