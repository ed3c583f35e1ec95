"""Callers with keys and a small budget of tokens at the gateway of a cluster.

`keys.yaml` and `token-limits.yaml` of `examples/gateway` are applied as people do; only the limit
is another one, in a window that does not end meanwhile.
"""

import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx

from local_cluster.rate_limit import redis
from paceline_testing.gateway_objects import example
from paceline_testing.gateway_world import NAME, GatewayWorld
from paceline_testing.rolled_service import WITHIN_S
from paceline_testing.waiting import wait_until

LIMIT: Final = 200
"""So many tokens each caller may spend."""
_CALLERS: Final = ("alice", "bob", "probe")


@dataclass(frozen=True, slots=True)
class LimitedCallers:
    """Two callers, alice and bob, and what the gateway has counted for each."""

    world: GatewayWorld

    def client(self, caller: str) -> httpx.Client:
        headers = {"x-api-key": _key(caller)}
        return httpx.Client(base_url=self.world.url, timeout=120, headers=headers)

    def streamed(self, caller: str, path: str, body: dict[str, Any] | bytes) -> list[bytes]:
        """Return the pieces of a stream as they came."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        with self.client(caller) as client, client.stream("POST", path, content=content) as answer:
            assert answer.status_code == 200
            return [piece for piece in answer.iter_raw() if piece]

    def spent(self, caller: str) -> int | None:
        """Read what Redis has of this caller; None if nothing."""
        cluster, keys = self.world.service.cluster, self.keys(caller)
        return sum(int(redis(cluster, "get", key)[0]) for key in keys) if keys else None

    def keys(self, caller: str) -> list[str]:
        """Return the names under which Redis counts this caller."""
        return redis(self.world.service.cluster, "--scan", "--pattern", f"*_{caller}_*")

    def comes_to(self, caller: str, tokens: int) -> None:
        """Wait until exactly so much was counted: that is done after the answer's end."""
        try:
            wait_until(lambda: self.spent(caller) == tokens, every_s=0.2)
        except AssertionError as error:
            error.add_note(f"{caller} has spent {self.spent(caller)}, {tokens} were told")
            raise

    def are_counted(self) -> bool:
        """Ask as one whom no test asks about; whether that was counted."""
        with self.client("probe") as client:
            body = {"model": NAME, "prompt": "Hi", "max_tokens": 1}
            try:
                client.post("/v1/completions", json=body)
            except httpx.TransportError:  # while listeners are replaced
                return False
        return bool(self.spent("probe"))


@contextmanager
def limited_callers(world: GatewayWorld) -> Iterator[LimitedCallers]:
    """Yield callers who have spent nothing; in the end everyone may ask again, without a key."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "gateway-keys"},
        "data": {caller: b64encode(_key(caller).encode()).decode() for caller in _CALLERS},
    }
    policy, counter = example("token-limits.yaml")
    (rule,) = policy["spec"]["rateLimit"]["global"]["rules"]
    rule["limit"] = {"requests": LIMIT, "unit": "Year"}
    objects = [secret, *example("keys.yaml"), policy, counter]
    redis(world.service.cluster, "flushall")
    world.apply(objects)
    callers = LimitedCallers(world)
    try:
        wait_until(callers.are_counted, within_s=WITHIN_S, every_s=0.5)
        yield callers
    finally:
        world.delete(objects)
    wait_until(lambda: _is_open(world.url))


def _is_open(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/models", timeout=30).is_success
    except httpx.TransportError:
        return False


def _key(caller: str) -> str:
    return f"the-key-of-{caller}"
