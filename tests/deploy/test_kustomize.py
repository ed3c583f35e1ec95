"""The Kustomize base: up to date with the chart, and built and applied by kubectl."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml

from local_cluster.cluster import Cluster, kubectl_command

ROOT = Path(__file__).parents[2]
KUSTOMIZE = ROOT / "deploy" / "kustomize"
BASE = KUSTOMIZE / "base"
OVERLAY = """
resources: ["{base}"]
images:
  - name: paceline/operator
    newName: registry.test/paceline/operator
    newTag: "1"
patches:
  - target: {{kind: Deployment, name: paceline}}
    patch: |-
      - {{op: replace, path: /spec/replicas, value: 2}}
"""


def test_the_base_is_up_to_date(tmp_path: Path) -> None:
    """`make kustomize` renders it after a change of the chart or the definition."""
    subprocess.run([sys.executable, KUSTOMIZE / "render.py", tmp_path], check=True)

    for rendered in tmp_path.iterdir():
        assert (BASE / rendered.name).read_text() == rendered.read_text(), rendered.name


def test_an_overlay_changes_image_and_replicas(tmp_path: Path) -> None:
    """Kustomize as kubectl has it builds it; nothing claims to be Helm's."""
    overlay = OVERLAY.format(base=os.path.relpath(BASE, tmp_path.resolve()))
    (tmp_path / "kustomization.yaml").write_text(overlay)

    text = subprocess.check_output([kubectl_command(), "kustomize", str(tmp_path)], text=True)
    objects = [*yaml.safe_load_all(text)]
    (deployment,) = [found for found in objects if found["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.test/paceline/operator:1"
    assert deployment["spec"]["replicas"] == 2
    assert "helm.sh/chart" not in text
    assert "managed-by: Helm" not in text


@pytest.mark.cluster
def test_the_base_is_applied_and_applied_again(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    """The command of docs/install.md; the second time changes nothing."""
    ours = ("-l", "app.kubernetes.io/part-of=paceline")
    request.addfinalizer(
        partial(cluster.kubectl, "delete", "clusterrole,clusterrolebinding", *ours)
    )
    request.addfinalizer(partial(cluster.kubectl, "delete", "ns", "paceline-system"))
    apply = ("apply", "--server-side", "--force-conflicts", "-k", str(BASE))
    cluster.kubectl(*apply)

    difference = cluster.try_kubectl("diff", "--server-side", "--force-conflicts", "-k", str(BASE))
    assert (difference.returncode, difference.stdout) == (0, ""), difference.stderr
