"""Each image holds what its process needs to start, and nothing else of ours."""

import tomllib
from collections.abc import Iterable
from pathlib import Path

import grimp
import pytest
from triton.runtime.cache import CacheManager

from local_cluster.dockerfile import Dockerfile
from local_cluster.images import DOCKERFILES, PARTS
from local_cluster.wheels import ROOT
from paceline_api.pod.environment import CACHE
from paceline_kernels.variant_cache import VariantCache

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    """Who imports whom among all our packages."""
    return grimp.build_graph(*PROJECT["tool"]["importlinter"]["root_packages"], cache_dir=None)


@pytest.fixture(params=PARTS)
def image(request: pytest.FixtureRequest) -> Dockerfile:
    return Dockerfile(DOCKERFILES / f"{request.param}.Dockerfile")


def packages_of(modules: Iterable[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def test_an_image_holds_what_its_process_imports(
    image: Dockerfile, imports: grimp.ImportGraph
) -> None:
    """One package too few and a lazy import fails in the pod; one too many is dead weight."""
    reached = imports.find_upstream_modules(image.process, as_package=True)

    assert set(image.packages) == {image.process} | packages_of(reached)


def test_what_an_image_copies_is_there(image: Dockerfile) -> None:
    """A folder that moved is noticed here, without building."""
    missing = [source for source in image.sources if not (ROOT / source).exists()]

    assert not missing


def test_the_engines_image_for_cpus_has_builds_and_no_compiler() -> None:
    """A pod on a read-only root compiles nothing: what it loads must lie in the image."""
    engine = Dockerfile(DOCKERFILES / "engine.Dockerfile")
    stages = list(engine.stages_of("cpu"))

    assert [stage.name for stage in stages] == ["cpu", "installed", "base"]
    assert not [stage.name for stage in stages if "gcc" in stage.text]
    assert "COPY --from=native /opt/native /opt/paceline/native\n" in stages[0].text
    assert "PACELINE_NATIVE_DIR=/opt/paceline/native " in stages[0].text
    assert [stage.name for stage in engine.stages_of("native")] == ["native", "compiler", "base"]


def test_what_an_engine_compiles_is_kept_on_the_volume_of_the_cache() -> None:
    """Variables of the image, so that pods keep their template; Triton imports its manager."""
    text = (DOCKERFILES / "engine.Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line.startswith("ENV ")]
    told = dict(word.split("=", 1) for line in lines for word in line.split()[1:])

    for name in ("PACELINE_NATIVE_CACHE_DIR", "PACELINE_VARIANT_CACHE_DIR"):
        assert Path(told[name]).parent == Path(CACHE)
    assert Path(told["TRITON_CACHE_DIR"]).parent == Path("/tmp")
    module, _, manager = told["TRITON_CACHE_MANAGER"].partition(":")
    assert (module, manager) == (VariantCache.__module__, VariantCache.__name__)
    assert issubclass(VariantCache, CacheManager)


def test_no_image_offers_a_command_that_cannot_start(image: Dockerfile) -> None:
    """`paceline` comes with our distribution, and needs what no image has: nobody installs it."""
    steps = image.path.read_text().replace("\\\n", " ").splitlines()
    installs = [step.rpartition("pip install ")[2] for step in steps if "pip install " in step]
    wanted = [word.rpartition("/")[2] for install in installs for word in install.split()]

    assert installs
    assert not [word for word in wanted if word in {"", "."} or word.startswith("paceline")]
