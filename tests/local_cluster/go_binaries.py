"""What the cluster and its guests run, built from pinned Go modules and kept."""

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from local_cluster.cache import CACHE, digest, locked
from local_cluster.errors import ClusterFailedError
from local_cluster.go_toolchain import go_command
from local_cluster.progress import say

MODULES = Path(__file__).parent / "binaries"
KUBERNETES_VERSION = "v1.36.3"

_MAJOR, _MINOR = KUBERNETES_VERSION.removeprefix("v").split(".")[:2]
_VERSION = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True)
class Module:
    """One folder below `binaries/` with a go.mod, and the commands that it builds."""

    name: str
    packages: tuple[str, ...]
    ldflags: str = "-s -w"
    tags: str = ""
    cgo: bool = False

    @property
    def folder(self) -> Path:
        return MODULES / self.name

    @property
    def bin(self) -> Path:
        """The folder of its binaries, named by everything that they are built from."""
        sources = sorted([self.folder / "go.sum", *self.folder.rglob("*.go")])
        flags = f"{self.packages} {self.ldflags} {self.tags} {self.cgo}"
        return (
            CACHE / f"{self.name}-{digest(flags, *(file.read_bytes() for file in sources))}" / "bin"
        )


# All of Kubernetes in one command: a kubelet that is linked statically with cgo crashes, and a
# change of CGO_ENABLED between two commands rebuilds the world. Without the version in ldflags
# the node calls itself v0.0.0-master.
KUBERNETES = Module(
    name="kubernetes",
    packages=(
        "./etcd",
        "./pause",
        "k8s.io/kubernetes/cmd/kube-apiserver",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
        "k8s.io/kubernetes/cmd/kube-scheduler",
        "k8s.io/kubernetes/cmd/kubelet",
        "k8s.io/kubernetes/cmd/kube-proxy",
    ),
    ldflags=(
        f"-s -w -X {_VERSION}.gitVersion={KUBERNETES_VERSION}"
        f" -X {_VERSION}.gitMajor={_MAJOR} -X {_VERSION}.gitMinor={_MINOR}"
    ),
)
CONTAINERD = Module(
    name="containerd",
    packages=tuple(
        f"github.com/containerd/containerd/v2/cmd/{command}"
        for command in ("containerd", "containerd-shim-runc-v2", "ctr")
    ),
)
RUNC = Module(name="runc", packages=("github.com/opencontainers/runc",), tags="seccomp", cgo=True)
BUILDKIT = Module(
    name="buildkit",
    packages=("github.com/moby/buildkit/cmd/buildkitd", "github.com/moby/buildkit/cmd/buildctl"),
)
FLUX = Module(name="flux", packages=("github.com/fluxcd/kustomize-controller",))

PROMETHEUS_OPERATOR = Module(
    name="prometheus-operator",
    packages=("github.com/prometheus-operator/prometheus-operator/cmd/operator",),
)
# Debian's knows no Kubernetes. Of the ways to find targets that is the only one built in.
PROMETHEUS = Module(
    name="prometheus",
    packages=("github.com/prometheus/prometheus/cmd/prometheus",),
    tags="remove_all_sd,enable_kubernetes_sd",
)
PROMETHEUS_ADAPTER = Module(
    name="prometheus-adapter", packages=("sigs.k8s.io/prometheus-adapter/cmd/adapter",)
)
# With the clients of some seventy services: a build of half an hour on one core.
KEDA = Module(
    name="keda",
    packages=(
        "github.com/kedacore/keda/v2/cmd/operator",
        "github.com/kedacore/keda/v2/cmd/adapter",
    ),
)

COREDNS = Module(name="coredns", packages=("./coredns",))
ENVOY_GATEWAY = Module(
    name="envoy-gateway", packages=("github.com/envoyproxy/gateway/cmd/envoy-gateway",)
)
# The version that this Envoy Gateway is built with.
RATE_LIMIT = Module(name="ratelimit", packages=("./ratelimit",))


def built(module: Module) -> Path:
    """Return the folder of the module's binaries; build them first if the cache lacks them."""
    if module.bin.is_dir():
        return module.bin
    with locked(f"build-{module.name}"):
        if not module.bin.is_dir():
            _build(module)
    return module.bin


def source_of(module: Module, path: str) -> Path:
    """Return the folder of a Go module that `module` is built from, downloaded where it is missing.

    Raises `ClusterFailedError` where it cannot be had.
    """
    return Path(_downloaded(path, within=module.folder)["Dir"])


def _build(module: Module) -> None:
    """Build beside the final folder and move it there in one step: a killed build leaves none."""
    say(f"building {module.name} from its Go module (minutes, once)")
    module.bin.parent.mkdir(parents=True, exist_ok=True)
    out = Path(tempfile.mkdtemp(dir=module.bin.parent))
    command = [
        go_command(),
        "build",
        "-o",
        f"{out}/",
        "-ldflags",
        module.ldflags,
        "-tags",
        module.tags,
    ]
    result = subprocess.run(
        [*command, *module.packages],
        cwd=module.folder,
        env=os.environ
        | {"CGO_ENABLED": "1" if module.cgo else "0", "GOFLAGS": "-mod=readonly -buildvcs=false"},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        shutil.rmtree(out)
        raise ClusterFailedError(f"go build of {module.name} failed:\n{result.stderr[-4000:]}")
    out.chmod(0o755)
    out.rename(module.bin)
    say(f"built {module.name}")


def module_folder(path: str, version: str, checksum: str) -> Path:
    """Return the sources of a module that nothing is built from, downloaded where they are missing.

    Raises `ClusterFailedError` where they are not those of the checksum.
    """
    # No go.mod of ours decides the version.
    found = _downloaded(f"{path}@{version}", within=Path(tempfile.gettempdir()))
    if found["Sum"] != checksum:
        raise ClusterFailedError(f"{path}@{version} is {found['Sum']}, wanted {checksum}")
    return Path(found["Dir"])


def _downloaded(query: str, *, within: Path) -> dict[str, str]:
    """Have a module in Go's cache: of the query's version, or of that which `within` asks for."""
    result = subprocess.run(
        [go_command(), "mod", "download", "-json", query],
        cwd=within,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        # With -json, why is part of what it prints.
        why = (result.stdout + result.stderr)[-4000:]
        raise ClusterFailedError(f"go mod download of {query} failed:\n{why}")
    found: dict[str, str] = json.loads(result.stdout)
    return found
