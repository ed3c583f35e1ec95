"""The sources that binaries are built from, and definitions applied from."""

from pathlib import Path

import pytest

from local_cluster.go_binaries import RATE_LIMIT, source_of

pytestmark = pytest.mark.cluster  # it needs Go and its modules, as a cluster does


def test_sources_are_had_before_anything_was_built_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Go's cache is empty on a new machine, and definitions are applied before the build."""
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("GOFLAGS", "-modcacherw")  # pytest removes the folder again

    folder = source_of(RATE_LIMIT, "github.com/envoyproxy/ratelimit")

    assert folder.is_relative_to(tmp_path)
    assert (folder / "go.mod").is_file()
