"""The command lines of etcd, kube-apiserver, kube-controller-manager and kube-scheduler."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from local_cluster.credentials import FRONT_PROXY, USERS, Credentials
from local_cluster.plan import Process

COMMANDS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
PORT = 6443
# The controllers' own accounts ask without end; of the parts, only who watches what is of interest.
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "Panic"],
    "rules": [
        {
            "level": "Metadata",
            "users": [user for user in USERS if user.startswith("system:")],
            "verbs": ["watch"],
        },
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """One control plane at one address, with fixed ports: the address is its own."""

    address: str
    commands: Mapping[str, Path]
    credentials: Credentials
    data: Path
    services: str = "10.96.0.0/16"
    node_grace: str = "50s"
    """For how long a node may say nothing before its pods leave their Services."""

    @property
    def audit_log(self) -> Path:
        """What service accounts asked and what the parts watch, a line of JSON for each request."""
        return self.data / "audit.log"

    @property
    def _audit_policy(self) -> Path:
        return self.data / "audit-policy.yaml"

    def write_files(self) -> None:
        """Write what the processes read at start."""
        self._audit_policy.write_text(yaml.safe_dump(_AUDIT))

    def processes(self) -> list[Process]:
        """Return the parts in the order in which they need one another."""
        return [self._etcd(), self._api_server(), self._controller_manager(), self._scheduler()]

    @property
    def _etcd_url(self) -> str:
        return f"http://{self.address}:2379"

    def _etcd(self) -> Process:
        peer = f"http://{self.address}:2380"
        return Process(
            "etcd",
            [
                str(self.commands["etcd"]),
                f"--data-dir={self.data / 'etcd'}",
                f"--listen-client-urls={self._etcd_url}",
                f"--advertise-client-urls={self._etcd_url}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync",  # nobody needs this data after a power cut
            ],
            ready=f"tcp://{self.address}:2379",
        )

    def _api_server(self) -> Process:
        credentials = self.credentials
        return Process(
            "kube-apiserver",
            [
                str(self.commands["kube-apiserver"]),
                f"--etcd-servers={self._etcd_url}",
                f"--cert-dir={credentials.certificates}",
                f"--bind-address={self.address}",
                f"--advertise-address={self.address}",
                f"--secure-port={PORT}",
                f"--service-cluster-ip-range={self.services}",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
                f"--token-auth-file={credentials.tokens}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={credentials.service_account_key}",
                f"--service-account-signing-key-file={credentials.service_account_key}",
                "--kubelet-preferred-address-types=InternalIP",
                f"--kubelet-client-certificate={credentials.kubelet_client_certificate}",
                f"--kubelet-client-key={credentials.kubelet_client_key}",
                # Who calls an API that extends this one, as a metrics adapter does.
                f"--requestheader-client-ca-file={credentials.front_proxy_certificate}",
                f"--requestheader-allowed-names={FRONT_PROXY}",
                "--requestheader-username-headers=X-Remote-User",
                "--requestheader-group-headers=X-Remote-Group",
                "--requestheader-extra-headers-prefix=X-Remote-Extra-",
                f"--proxy-client-cert-file={credentials.front_proxy_certificate}",
                f"--proxy-client-key-file={credentials.front_proxy_key}",
                f"--audit-policy-file={self._audit_policy}",
                f"--audit-log-path={self.audit_log}",
            ],
            # Refused to the anonymous until the first roles are there: ready means usable.
            ready=f"{credentials.url}/readyz",
            authority=credentials.authority,
        )

    def _controller_manager(self) -> Process:
        return self._controllers(
            "kube-controller-manager",
            f"--service-account-private-key-file={self.credentials.service_account_key}",
            f"--root-ca-file={self.credentials.authority}",
            "--use-service-account-credentials=true",
            f"--node-monitor-grace-period={self.node_grace}",
        )

    def _scheduler(self) -> Process:
        return self._controllers("kube-scheduler")

    def _controllers(self, command: str, *flags: str) -> Process:
        kubeconfig = self.credentials.kubeconfig(f"system:{command}")
        return Process(
            command,
            [
                str(self.commands[command]),
                f"--kubeconfig={kubeconfig}",
                f"--authentication-kubeconfig={kubeconfig}",
                f"--authorization-kubeconfig={kubeconfig}",
                f"--bind-address={self.address}",
                f"--cert-dir={self.data / command}",
                "--leader-elect=false",
                "--kube-api-qps=500",  # its default of 20 a second makes every test wait
                "--kube-api-burst=1000",
                *flags,
            ],
        )
