"""What a cluster needs from the machine, and how to install it on Debian and Ubuntu."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from local_cluster.cache import CACHE
from local_cluster.errors import UnavailableError
from local_cluster.progress import say

# A command or a file that must be there, and the Debian package that brings it.
_FOR_CONTROL_PLANE: Mapping[str, str] = {"openssl": "openssl"}
_FOR_NODE: Mapping[str, str] = {
    **_FOR_CONTROL_PLANE,
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
    "/usr/include/seccomp.h": "libseccomp-dev",
    "conntrack": "conntrack",
    "gcc": "gcc",
    "ip": "iproute2",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "nft": "nftables",
    "nsenter": "util-linux",
    "pkg-config": "pkg-config",
    "sysctl": "procps",
}
# Its program looks for its templates where the package has them, so it cannot be unpacked aside.
_FOR_MONITORING: Mapping[str, str] = {"prometheus-alertmanager": "prometheus-alertmanager"}


def why_no_control_plane() -> str | None:
    """Say in one sentence why not even a control plane can run here."""
    if sys.platform != "linux":
        return "the local cluster needs Linux: name another one in PACELINE_TEST_KUBECONFIG"
    return None


def why_no_node() -> str | None:
    """Say in one sentence why no node that runs containers can run here."""
    lack = why_no_control_plane()
    if lack is None and os.geteuid() != 0:
        return "a node of the local cluster needs root, or a cluster in PACELINE_TEST_KUBECONFIG"
    return lack


def prepare_control_plane() -> None:
    """Install what a control plane needs, or raise `UnavailableError`."""
    _prepare(_FOR_CONTROL_PLANE, why_no_control_plane())


def prepare_node() -> None:
    """Install what a node needs, or raise `UnavailableError`."""
    _prepare(_FOR_NODE, why_no_node())


def prepare_monitoring() -> None:
    """Install Alertmanager without starting its service, or raise `UnavailableError`."""
    _prepare(_FOR_MONITORING, why_no_control_plane())


def free_disk_gb() -> float:
    """Measure the room for images and the build's copies of their layers."""
    CACHE.mkdir(parents=True, exist_ok=True)
    return shutil.disk_usage(CACHE).free / 1e9


def _prepare(needs: Mapping[str, str], lack: str | None) -> None:
    if lack is not None:
        raise UnavailableError(lack)
    packages = _missing(needs)
    if not packages:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise UnavailableError(f"the local cluster needs {', '.join(packages)}: install them")
    say(f"installing {' '.join(packages)}")
    _apt_get("update")
    _apt_get("install", "--yes", "--no-install-recommends", *packages)
    still = _missing(needs)
    if still:
        raise UnavailableError(
            f"apt-get brought no {', '.join(still)}, which the local cluster needs"
        )


def _missing(needs: Mapping[str, str]) -> list[str]:
    """Return the packages whose command or file is missing."""
    return [
        package
        for need, package in needs.items()
        if not (Path(need).exists() if need.startswith("/") else shutil.which(need))
    ]


def _apt_get(*args: str) -> None:
    result = subprocess.run(
        ["apt-get", "-qq", *args],
        # In runlevel 1 no package starts its service: only the programs are wanted.
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise UnavailableError(f"apt-get {args[0]} failed: {result.stderr.strip()[-500:]}")
