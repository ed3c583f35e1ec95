"""How each command of the pages is run here, or why it is not; the first pattern that fits counts.

A command that fits none fails `tests/docs/test_commands_run.py`: whoever writes one decides.
Console blocks need no line here: they are run in order with their page (`run.py`).
"""

from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase


class How(Enum):
    """Who runs a command."""

    QUICK = "in CI, and by make docs-check"
    LONG = "by make docs-check"
    SERVED = "by make docs-check, beside a service on port 8000"
    TUTORIAL = "as part of the tutorial, in CI"
    NOT = "not here"


@dataclass(frozen=True, slots=True)
class Class:
    """Commands that one pattern fits, and how they are run."""

    pattern: str
    """As of a shell's file names, over the whole command."""

    how: How
    why: str = ""
    """Of what is not run, or is run as something else."""


_OWN = "names the reader's own service, file or namespace"
_IMAGES = "its images lie in the reader's registry; the tutorial installs the chart with local ones"
_GPU = "needs a CUDA GPU"
_CI = "it is what CI runs itself"
_TESTED = "a test of its own, for minutes on a whole cluster, which CI runs by its name"

CLASSES = (
    # make
    Class("make help", How.QUICK),
    Class("make site", How.QUICK),
    Class("make kustomize", How.LONG),
    Class("make crds", How.LONG),
    Class("make quick", How.LONG),
    Class("make demo", How.LONG),
    Class("make clients", How.LONG),
    Class("make bench", How.LONG),
    Class("make pictures", How.LONG),
    Class("make sbom", How.LONG),
    Class("make many-services", How.LONG),
    Class("make fleet PODS=3000 PROCESSES=2", How.LONG),
    Class("make knees", How.LONG),
    Class("make balancing", How.LONG),
    Class("make scenes", How.LONG),
    Class("make overload", How.LONG),
    Class("make chaos", How.LONG),
    Class("make sim-to-real", How.LONG),
    Class("make tune-report", How.LONG),
    Class("make tune-report-long", How.LONG),
    Class("make gpu-compile", How.LONG),
    Class("make gpu DRY=1", How.LONG),
    Class("make gpu*", How.NOT, _GPU),
    Class("make e2e-*", How.NOT, _TESTED),
    Class("make test", How.NOT, _CI),
    Class("make check", How.NOT, _CI),
    Class("make images", How.NOT, "the cluster that CI and the tutorial's test start builds them"),
    Class("make cluster", How.NOT, "it stays up; the tutorial's test starts the same one"),
    Class("make audit", How.NOT, "it asks pypi.org for known vulnerabilities"),
    Class("make docs-check", How.NOT, "it would run itself"),
    Class("make install", How.NOT, "whatever runs here was installed by it"),
    Class("make PYTHON=* install", How.NOT, "whatever runs here was installed by it"),
    # Python
    Class("*python -m docs_check*", How.NOT, "it would run itself"),
    Class("python -m paceline_engine*", How.NOT, "a pod's process: manifests start it"),
    Class("python -m paceline_sidecar", How.NOT, "a pod's process: manifests start it"),
    Class("python -m paceline_operator.*", How.NOT, "the chart starts it"),
    Class("python benchmarks/kernel_speed.py", How.NOT, _GPU),
    Class("python3 -m gpu_suite *", How.NOT, _GPU),
    Class("python3 --version", How.QUICK),
    Class("python3 -m pip install *", How.NOT, "for a GPU machine without a network"),
    Class("pip download *", How.NOT, "for a GPU machine without a network"),
    Class("pip install *", How.NOT, "installs into the reader's environment"),
    Class("pipx run pre-commit install", How.NOT, "writes hooks into the reader's clone"),
    Class("python tests/local_cluster/binaries/*", How.NOT, "raises a version of Kubernetes"),
    Class("python examples/pipelines/*", How.NOT,
          "needs three services; tests/seams/test_pipelines.py runs the programs"),
    Class("*python benchmarks/*", How.LONG),
    Class("*python -m *", How.LONG),
    # paceline
    Class("paceline plan -f service.yaml --traffic trace.csv*", How.QUICK),
    Class("paceline up *", How.TUTORIAL),
    Class("paceline chat", How.TUTORIAL),
    Class("paceline explain", How.SERVED),
    Class("paceline explain --export fixed.yaml", How.SERVED),
    Class("paceline diagnose", How.SERVED),
    Class("paceline diagnose --format json", How.SERVED),
    Class("paceline diagnose *", How.NOT, _OWN),
    Class("paceline explain *", How.NOT, _OWN),
    Class("paceline bench run --url http://127.0.0.1:8000 --rate *", How.SERVED),
    Class("paceline bench run -f examples/quickstart.yaml *", How.LONG),
    Class("paceline bench sweep -f examples/quickstart.yaml", How.LONG),
    Class("paceline bench compare -f examples/quickstart.yaml", How.LONG),
    Class("paceline bench run --url *", How.NOT, "another's server, or one that the reader names"),
    Class("paceline bench machines *", How.NOT, "sweeps of several machines"),
    Class("paceline bench sweep *--beside*", How.NOT, "sweeps of several machines"),
    Class("paceline bench check *", How.NOT,
          "a baseline of the reader's; tests/cli/bench/test_check.py runs it on runs of its own"),
    # a cluster
    Class("docker *", How.NOT, "needs Docker and a registry; the local cluster builds the same"),
    Class("helm install paceline charts/paceline *registry.example.com*", How.NOT, _IMAGES),
    Class("helm install paceline charts/paceline *", How.TUTORIAL),
    Class("helm uninstall *", How.TUTORIAL),
    Class("helm upgrade *", How.NOT, "tests/upgrade does so through Helm's library"),
    Class("helm rollback *", How.NOT, "tests/upgrade does so through Helm's library"),
    Class("kubectl apply -f examples/quickstart.yaml", How.TUTORIAL),
    Class("kubectl wait *", How.TUTORIAL),
    Class("kubectl get pisvc", How.TUTORIAL),
    Class("kubectl port-forward service/quickstart 8000", How.TUTORIAL),
    Class("kubectl apply --server-side -k *", How.NOT, "tests/deploy applies what it renders"),
    Class("kubectl apply *", How.NOT, "needs another's controller, or more than this cluster has"),
    Class("kubectl *", How.NOT, _OWN),
    Class("curl http://127.0.0.1:8000/v1/chat/completions * *quickstart*", How.TUTORIAL),
    Class("curl *", How.NOT, _OWN),
    # programs of others
    Class("cat", How.NOT, "prints what the command before it has printed"),
    Class("echo *", How.NOT, _OWN),
    Class("jq *", How.NOT, "filters what a command before it has printed"),
    Class("cosign *", How.NOT, "signs images in the reader's registry"),
    Class("crane *", How.NOT, "reads the reader's registry"),
)  # fmt: skip


def class_of(command: str) -> Class | None:
    """Return the first class that the command fits; None where nobody has decided."""
    plain = command.removeprefix(".venv/bin/")
    return next((each for each in CLASSES if fnmatchcase(plain, each.pattern)), None)
