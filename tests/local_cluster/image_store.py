"""What the node's containerd keeps on the disk between runs, and how a build gets room."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from local_cluster.cache import CACHE
from local_cluster.errors import ClusterFailedError, UnavailableError
from local_cluster.node import IMAGE_NAMESPACE, Node
from local_cluster.progress import say

REGISTRY = "docker.io"  # what the kubelet puts before a name without a host
COLD_BUILD_GB = 24  # 20 of them were used from nothing to all images
WARM_BUILD_GB = 5


class Store(Protocol):
    """What fills the disk, and how much of it a build needs."""

    def room_needed_gb(self) -> int:
        """Return the free disk that the next build needs."""
        ...

    def drop_all(self) -> None:
        """Give up every image and every layer."""
        ...


def make_room(store: Store, free_gb: Callable[[], float]) -> None:
    """Drop what older builds left where the disk has no room for the next one.

    Raises:
        UnavailableError: There is no room even so.

    """
    if free_gb() >= store.room_needed_gb():
        return
    say("little room on the disk: dropping what older builds have left")
    store.drop_all()
    found_gb, needed_gb = free_gb(), store.room_needed_gb()
    if found_gb < needed_gb:
        raise UnavailableError(
            f"building the images needs {needed_gb} GB free under {CACHE}, found {found_gb:.0f} GB"
        )


def nameless(listing: str) -> list[str]:
    """Return the references that `ctr images list` shows of images that no name leads to.

    For each image that a pod was started from, containerd's CRI plugin adds a second reference,
    `sha256:` and the digest of its configuration, which stays when a name is dropped by `ctr`.
    """
    rows = [line.split()[:3] for line in listing.splitlines()[1:]]
    named = {digest for reference, _, digest in rows if not reference.startswith("sha256:")}
    return [reference for reference, _, digest in rows if digest not in named]


@dataclass(frozen=True, slots=True)
class ImageStore:
    """The images that the node's containerd has, and what they are built from."""

    node: Node

    def names(self) -> set[str]:
        return set(self._ctr("images", "list", "--quiet").split())

    def add(self, reference: str, archive: Path) -> None:
        if reference not in self.names():
            self._ctr("images", "import", str(archive))

    def tag(self, reference: str, other: str) -> None:
        """Give an image a second name."""
        self._ctr("images", "tag", "--force", reference, other)

    def room_needed_gb(self) -> int:
        """Return what all images need: less once torch's layer is there, in an engine's image."""
        has_torch = any("/paceline/engine:" in name for name in self.names())
        return WARM_BUILD_GB if has_torch else COLD_BUILD_GB

    def keep_only(self, wanted: set[str]) -> None:
        """Drop images of older trees, so that the disk does not fill with them."""
        self._drop(self._built() - wanted)

    def drop_all(self) -> None:
        """Drop the layers that BuildKit keeps, then every built image, and wait for the disk.

        Containers hold their images' layers, and a cluster that was ended from outside leaves
        its own. None is wanted: no pod of this cluster runs before its images are there.
        """
        self._run("buildctl", f"--addr=unix://{self.node.builder_socket}", "prune", "--all")
        for container in self._containers():
            self._drop_container(container)
        self._drop(self._built())

    def _containers(self) -> list[str]:
        return self._ctr("containers", "list", "--quiet").split()

    def _drop_container(self, container: str) -> None:
        """Drop it; the kubelet, which does not know its pod, may have done so already."""
        try:
            self._ctr("containers", "delete", container)
        except ClusterFailedError:
            if container in self._containers():
                raise

    def _built(self) -> set[str]:
        return {name for name in self.names() if name.startswith(f"{REGISTRY}/paceline/")}

    def _drop(self, names: set[str]) -> None:
        if names:
            self._ctr("images", "delete", "--sync", *names)
        if left := nameless(self._ctr("images", "list")):
            self._ctr("images", "delete", "--sync", *left)

    def _ctr(self, *args: str) -> str:
        namespace = f"--namespace={IMAGE_NAMESPACE}"
        return self._run("ctr", f"--address={self.node.socket}", namespace, *args)

    def _run(self, binary: str, *args: str) -> str:
        result = subprocess.run(
            [str(self.node.binaries[binary]), *args], capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            raise ClusterFailedError(f"{binary} {' '.join(args)}: {result.stderr.strip()}")
        return result.stdout
