"""Which Go builds the cluster."""

import pytest

from local_cluster.go_toolchain import is_new_enough


@pytest.mark.parametrize(
    ("printed", "enough"),
    [
        ("go version go1.26.8 linux/amd64", True),
        ("go version go1.27rc1 linux/arm64", True),
        ("go version go1.19.8 linux/amd64", False),
        ("", False),
    ],
    ids=["wanted", "newer", "Debian's", "broken"],
)
def test_only_a_go_that_kubernetes_accepts_is_taken(printed: str, *, enough: bool) -> None:
    """Debian 12 has Go 1.19, which cannot even read Kubernetes' go.mod."""
    assert is_new_enough(printed) == enough
