"""The one node `n1`: containerd, kubelet and kube-proxy, and the files that they read."""

import json
from dataclasses import dataclass
from pathlib import Path

import yaml

from local_cluster import network
from local_cluster.cache import CACHE
from local_cluster.credentials import Credentials
from local_cluster.plan import Process

NAME = "n1"
PAUSE_IMAGE = "paceline.local/pause:1"
CNI_PLUGINS = Path("/usr/lib/cni")
# Torch's wheels and layer, once. BuildKit counts layers as they lie unpacked; their blobs, which it
# does not count, take as much again. Its own default is most of the disk.
BUILD_CACHE = "10GB"
IMAGE_NAMESPACE = "k8s.io"  # where the kubelet finds images
CGROUP = "paceline-cluster"


@dataclass(frozen=True, slots=True)
class Node:
    """A node of this run; its images outlive it."""

    folder: Path
    binaries: dict[str, Path]
    credentials: Credentials

    @property
    def images(self) -> Path:
        """Containerd's root: layers of torch are too large to be unpacked in every run."""
        return CACHE / "containerd"

    @property
    def socket(self) -> Path:
        return self.folder / "containerd.sock"

    def write_files(self) -> None:
        """Write what the processes read."""
        (self.folder / "cni").mkdir(parents=True)
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(self._cni()))
        (self.folder / "containerd.toml").write_text(self._containerd_config())
        (self.folder / "buildkitd.toml").write_text(self._buildkit_config())
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet_config()))
        self.no_names.write_text("nameserver 127.0.0.1\n")
        (self.folder / "resolv.conf").write_text(f"nameserver {network.DNS}\n")

    @property
    def no_names(self) -> Path:
        """The node's resolv.conf: BuildKit's look-ups are refused at once, not after 20 s."""
        return self.folder / "no-names.conf"

    @property
    def builder_socket(self) -> Path:
        return self.folder / "buildkit.sock"

    def runtime(self) -> list[Process]:
        """Containerd and BuildKit: enough to build and import images."""
        return [
            Process(
                "containerd",
                [str(self.binaries["containerd"]), "-c", str(self.folder / "containerd.toml")],
                ready=f"unix://{self.socket}",
            ),
            Process(
                "buildkitd",
                [str(self.binaries["buildkitd"]), f"--config={self.folder / 'buildkitd.toml'}"],
                ready=f"unix://{self.builder_socket}",
            ),
        ]

    def agents(self) -> list[Process]:
        """Kubelet and kube-proxy, which make the machine a node."""
        return [
            Process(
                "kubelet",
                [
                    str(self.binaries["kubelet"]),
                    f"--config={self.folder / 'kubelet.yaml'}",
                    f"--kubeconfig={self.credentials.kubeconfig(f'system:node:{NAME}')}",
                    f"--hostname-override={NAME}",
                    f"--node-ip={network.NODE}",
                    f"--root-dir={self.folder / 'kubelet'}",
                    f"--cert-dir={self.folder / 'kubelet-certs'}",
                ],
            ),
            Process(
                "kube-proxy",
                [
                    str(self.binaries["kube-proxy"]),
                    f"--kubeconfig={self.credentials.kubeconfig('system:kube-proxy')}",
                    "--proxy-mode=nftables",
                    f"--cluster-cidr={network.PODS}",
                    f"--hostname-override={NAME}",
                    "--conntrack-max-per-core=0",
                ],
            ),
        ]

    def _cni(self) -> dict[str, object]:
        addresses = {
            "type": "host-local",
            "dataDir": "/run/cni",
            "ranges": [[{"subnet": network.PODS}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "ipMasq": False}
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": [{**bridge, "ipam": addresses}]}

    def _containerd_config(self) -> str:
        # restrict_oom_score_adj: else runc dies where CAP_SYS_RESOURCE is missing.
        return f"""\
version = 3
root = "{self.images}"
state = "/run/containerd"
[grpc]
  address = "{self.socket}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{CNI_PLUGINS}"]
  conf_dir = "{self.folder / "cni"}"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    BinaryName = "{self.binaries["runc"]}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE_IMAGE}"
"""

    def _buildkit_config(self) -> str:
        return f"""\
root = "{CACHE / "buildkit"}"
[grpc]
  address = ["unix://{self.builder_socket}"]
[worker.oci]
  enabled = false
[worker.containerd]
  enabled = true
  address = "{self.socket}"
  namespace = "{IMAGE_NAMESPACE}"
  networkMode = "host"
  gc = true
[[worker.containerd.gcpolicy]]
  all = true
  maxUsedSpace = "{BUILD_CACHE}"
"""

    def _kubelet_config(self) -> dict[str, object]:
        trusted = {"clientCAFile": str(self.credentials.kubelet_client_certificate)}
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "readOnlyPort": 0,
            "healthzPort": 0,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": trusted,
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            # Not the machine's own /kubepods: a kubelet kills what it finds there and knows not.
            "cgroupRoot": f"/{CGROUP}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "resolvConf": str(self.folder / "resolv.conf"),
            "clusterDNS": [network.DNS],
            "clusterDomain": "cluster.local",
            "enableControllerAttachDetach": False,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1Gi"},
            "volumePluginDir": str(self.folder / "volume-plugins"),
            "podLogsDir": str(self.folder / "pod-logs"),
        }
