"""How each command of the pages is run here, or why it is not; the first pattern that fits counts.

A command that fits none fails `tests/docs/test_commands_run.py`: whoever writes one decides.
Console blocks need no line here: they are run in order with their page (`run.py`).
"""

from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from docs_check import prepared
from docs_check.prepared import AS_IT_IS, Prepared


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

    prepared: Prepared = AS_IT_IS
    """What the command finds."""


_IN_ORDER = "make e2e-fleet applies them in this order to a cluster"
_OWN = "names the reader's own service, node, namespace or secret in a cluster"
_REPOSITORY = "changes the reader's own repository, from which Flux or Argo CD applies"
_IMAGES = "its images lie in the reader's registry; the tutorial installs the chart with local ones"
_GPU = "needs a CUDA GPU"
_CI = "it is what CI runs itself"
_TESTED = "a command of its own, minutes on a whole cluster; neither make test nor CI runs it"

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
    Class("python -m paceline_operator*", How.NOT, "the chart starts it"),
    Class("python benchmarks/kernel_speed.py", How.NOT, _GPU),
    Class("python3 -m gpu_suite *", How.NOT, _GPU),
    Class("python3 --version", How.QUICK),
    Class("python3 -m pip install --no-index *", How.LONG, prepared=prepared.WHEELS),
    Class("pip download *", How.LONG),
    Class("pip install *", How.NOT, "installs into the reader's environment"),
    Class("pipx run pre-commit install", How.NOT, "writes hooks into the reader's clone"),
    Class("python tests/local_cluster/binaries/*", How.NOT, "raises a version of Kubernetes"),
    Class("python examples/pipelines/retrieve.py *", How.SERVED, prepared=prepared.THREE_SERVICES),
    Class("python examples/pipelines/cascade.py *", How.SERVED, prepared=prepared.QUESTIONS),
    Class("python examples/pipelines/offline.py *", How.NOT,
          "paceline up takes no batch files; tests/seams/test_pipelines.py runs it on who does"),
    Class("*python benchmarks/*", How.LONG),
    Class("*python -m *", How.LONG),
    # paceline
    Class("paceline plan -f service.yaml --traffic trace.csv*", How.QUICK),
    Class("paceline up *", How.TUTORIAL),
    Class("paceline chat", How.TUTORIAL),
    Class("paceline explain", How.SERVED),
    Class("paceline explain --export fixed.yaml", How.SERVED, prepared=prepared.AFTER_REQUESTS),
    Class("paceline diagnose", How.SERVED, prepared=prepared.AFTER_REQUESTS),
    Class("paceline diagnose --format json", How.SERVED, prepared=prepared.AFTER_REQUESTS),
    Class("paceline diagnose --price-per-hour *", How.SERVED, prepared=prepared.AFTER_REQUESTS),
    Class("paceline diagnose --url http://127.0.0.1:8001 *", How.SERVED,
          prepared=prepared.FORWARDED),
    Class("paceline diagnose *", How.NOT, _OWN),
    Class("paceline explain *", How.NOT, _OWN),
    Class("paceline bench run --url http://127.0.0.1:8000 --rate *", How.SERVED),
    Class("paceline bench run -f examples/quickstart.yaml *", How.LONG),
    Class("paceline bench sweep -f examples/quickstart.yaml", How.LONG),
    Class("paceline bench compare -f examples/quickstart.yaml", How.LONG),
    Class("paceline bench run --url http://127.0.0.1:8000 --trace ours.jsonl", How.SERVED,
          prepared=prepared.OWN_LOG),
    Class('paceline bench run --url "$URL" *', How.SERVED, prepared=prepared.URL),
    Class("paceline bench run --url https://api.example.com *", How.NOT, "another's server"),
    Class("paceline bench machines *", How.QUICK, prepared=prepared.SWEEPS),
    Class("paceline bench sweep *--beside*", How.LONG, prepared=prepared.SWEEPS_AND_FEW_POINTS),
    Class("paceline bench check *", How.SERVED, prepared=prepared.TWO_RUNS),
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
    Class("kubectl apply *─*", How.NOT, "no command: a line of a drawing begins with its name"),
    Class("kubectl apply --server-side -k *", How.NOT, "tests/deploy applies what it renders"),
    Class("kubectl apply --server-side --force-conflicts -f crds", How.NOT,
          "tests with a cluster apply the file in it so"),
    Class("kubectl apply -f examples/policies", How.NOT, "tests/deploy applies each of them"),
    Class("kubectl apply -f examples/pipelines/*", How.NOT,
          "asks for three cores; tests/seams/test_pipelines.py lets one service stand for three"),
    Class("kubectl apply -f examples/gateway/*", How.NOT, _IN_ORDER),
    Class("kubectl apply -f examples/envoy-monitor.yaml", How.NOT, _IN_ORDER),
    Class("kubectl apply -f examples/keda.yaml", How.NOT, _IN_ORDER),
    Class("kubectl apply -f deploy/flux/*", How.NOT, "needs Flux; make e2e-gitops has one"),
    Class("kubectl apply -f deploy/argocd/*", How.NOT, "needs Argo CD"),
    Class("kubectl apply --server-side --field-manager=paceline -f -", How.NOT,
          "tests/deploy/test_argocd_health.py does so, into a ConfigMap that others share"),
    Class("kubectl -n argocd create configmap * --dry-run=client *", How.LONG),
    Class("kubectl -n paceline-system get secret *", How.NOT,
          "needs a cluster; tests/operator reads the token there"),
    Class("kubectl *", How.NOT, _OWN),
    Class("curl http://127.0.0.1:8000/v1/chat/completions * *quickstart*", How.TUTORIAL),
    Class('curl http://127.0.0.1:8000/v1/* *"sql"*', How.NOT,
          "names an adapter of the reader's; tests/seams/test_adapters.py asks for one"),
    Class("curl *http://127.0.0.1:8001/runtime/profile*", How.SERVED,
          prepared=prepared.UNDER_TRAFFIC),
    Class("curl *http://127.0.0.1:8001/*", How.SERVED, prepared=prepared.FORWARDED),
    # programs of others
    Class("git *", How.NOT, _REPOSITORY),
    Class("sed -i * services/*", How.NOT, _REPOSITORY),
    Class("cat", How.NOT, "prints what the command before it has printed"),
    Class("echo *kubectl get secret*", How.NOT, _OWN),
    Class("jq -c *", How.SERVED, prepared=prepared.TELEMETRY),
    Class("cosign *", How.NOT, "signs images in the reader's registry"),
    Class("crane *", How.NOT, "reads the reader's registry"),
)  # fmt: skip


def class_of(command: str) -> Class | None:
    """Return the first class that the command fits; None where nobody has decided."""
    plain = command.removeprefix(".venv/bin/")
    return next((each for each in CLASSES if fnmatchcase(plain, each.pattern)), None)
