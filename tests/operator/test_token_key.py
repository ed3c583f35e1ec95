"""One key, made once and read by every replica; each purpose has a token of its own."""

import base64

import pytest

from paceline_operator.errors import ConflictError, TokenKeyError
from paceline_operator.token_key import TokenKey, open_token_key
from paceline_testing.fake_cluster import FakeCluster


async def test_a_key_is_made_once_and_then_read() -> None:
    """A restart, an upgrade and another replica find the same tokens."""
    cluster = FakeCluster()

    first = await open_token_key(cluster, "paceline", "op")
    second = await open_token_key(cluster, "paceline", "op")

    assert first == second
    assert len(first.key) == 32
    assert cluster.writes == ["create Secret/op-token-key", "create Secret/op-decisions-token"]


class _Overtaken(FakeCluster):
    """Another replica creates the key between our look and our own try."""

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, object] | None:
        found = await FakeCluster.get(self, kind, namespace, name)
        if found is None:
            other = {"key": base64.b64encode(b"o" * 32).decode()}
            self.objects[kind, name] = {
                "kind": kind, "metadata": {"name": name, "namespace": namespace}, "data": other
            }  # fmt: skip
        return found


async def test_replicas_that_start_together_agree() -> None:
    """The second to create reads what the first has made."""
    cluster = _Overtaken()

    key = await open_token_key(cluster, "paceline", "op")

    assert key == TokenKey(b"o" * 32)
    assert ("Secret", "op-token-key") in cluster.objects
    with pytest.raises(ConflictError):
        await cluster.create(cluster.objects["Secret", "op-token-key"])


@pytest.mark.parametrize(
    "data",
    [None, {}, {"key": ""}, {"key": "%"}, {"key": base64.b64encode(b"short").decode()}],
    ids=["null", "none", "empty", "no base64", "short"],
)
async def test_a_secret_without_a_key_is_refused_by_name(data: dict[str, str] | None) -> None:
    """A short key could be guessed; readiness shows the sentence."""
    meta = {"name": "op-token-key", "namespace": "paceline"}
    cluster = FakeCluster({("Secret", "op-token-key"): {"metadata": meta, "data": data}})

    with pytest.raises(TokenKeyError, match="Secret paceline/op-token-key must hold at least 32"):
        await open_token_key(cluster, "paceline", "op")


def test_tokens_tell_nothing_of_each_other() -> None:
    """Every service and purpose has another one, and the key does not show in a log."""
    key = TokenKey(b"k" * 32)

    tokens = {key.runtime_token("a"), key.runtime_token("b"), key.decisions_token()}

    assert len(tokens) == 3
    assert all(len(token) == 43 for token in tokens)
    assert key.runtime_token("decisions") not in tokens
    assert "kkkk" not in repr(key)
    # Pods hold it: a newer operator must derive the same.
    assert key.runtime_token("a") == "1h9bPM3uCeEkhia6TWF9zHfRMqdTIB_1cqG66kXOciY"
