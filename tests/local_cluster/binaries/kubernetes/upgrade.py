"""Write go.mod for one version of Kubernetes: `python upgrade.py v1.36.3`.

Kubernetes keeps its libraries (k8s.io/api, ...) in its own tree and replaces them by path, which
an importing module cannot follow. Each is also published as v0.MINOR.PATCH: replace by that.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TOOLS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")


def go(*args: str) -> str:
    return subprocess.run(
        ["go", *args], cwd=HERE, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def module_file(version: str) -> str:
    """A go.mod that requires this Kubernetes with the libraries of the same release."""
    download: dict[str, Any] = json.loads(
        go("mod", "download", "-json", f"k8s.io/kubernetes@{version}")
    )
    upstream: dict[str, Any] = json.loads(go("mod", "edit", "-json", download["GoMod"]))
    library_version = version.replace("v1", "v0", 1)
    libraries = [replace["Old"]["Path"] for replace in upstream["Replace"]]
    return "\n".join(
        [
            "module local-cluster/kubernetes",
            f"go {upstream['Go']}",
            f"require k8s.io/kubernetes {version}",
            *(f"replace {path} => {path} {library_version}" for path in libraries),
            "",
        ]
    )


def main(version: str) -> None:
    (HERE / "go.mod").write_text(module_file(version))
    go("get", "-tool", *(f"k8s.io/kubernetes/cmd/{tool}" for tool in TOOLS))
    go("mod", "tidy")


if __name__ == "__main__":
    main(*sys.argv[1:])
