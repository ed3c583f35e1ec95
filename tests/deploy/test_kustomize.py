"""The Kustomize base: up to date with the chart, and built and applied by kubectl."""

import os
import re
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
PAGE = ROOT / "docs" / "install.md"


def test_the_base_is_up_to_date(tmp_path: Path) -> None:
    """`make kustomize` renders it after a change of the chart or the definition."""
    subprocess.run([sys.executable, KUSTOMIZE / "render.py", tmp_path], check=True)

    for rendered in tmp_path.iterdir():
        assert (BASE / rendered.name).read_text() == rendered.read_text(), rendered.name


def test_the_overlay_of_the_page_sets_every_image(tmp_path: Path) -> None:
    """It builds with kubectl's own Kustomize, and nothing in it claims to be Helm's."""
    (overlay,) = re.findall(r"```yaml\n(resources:.*?)```", PAGE.read_text(), re.DOTALL)
    base = os.path.relpath(BASE, tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(overlay.replace("../base", base))

    text = subprocess.check_output([kubectl_command(), "kustomize", str(tmp_path)], text=True)
    objects = [*yaml.safe_load_all(text)]
    (deployment,) = [found for found in objects if found["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    env = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert container["image"] == "registry.example.com/paceline/operator:0.2.0"
    assert env["PACELINE_OPERATOR_ENGINE_IMAGE"] == "registry.example.com/paceline/engine:0.2.0"
    assert env["PACELINE_OPERATOR_SIDECAR_IMAGE"] == "registry.example.com/paceline/sidecar:0.2.0"
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
