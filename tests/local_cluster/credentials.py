"""Who may talk to the API server: one token a user, and the keys that the server signs with."""

import secrets
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

# Each user of the cluster with its groups; RBAC and the Node authorizer know these names.
USERS: Mapping[str, tuple[str, ...]] = {
    "admin": ("system:masters",),
    "system:node:n1": ("system:nodes",),
    "system:kube-proxy": (),
    "system:kube-controller-manager": (),
    "system:kube-scheduler": (),
}

FRONT_PROXY = "front-proxy-client"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files of one cluster's run, and its address."""

    folder: Path
    url: str

    @property
    def tokens(self) -> Path:
        return self.folder / "tokens.csv"

    @property
    def service_account_key(self) -> Path:
        return self.folder / "service-account.key"

    @property
    def kubelet_client_key(self) -> Path:
        return self.folder / "kubelet-client.key"

    @property
    def kubelet_client_certificate(self) -> Path:
        """Self-signed: the kubelet trusts this very certificate, so it is its own authority."""
        return self.folder / "kubelet-client.crt"

    @property
    def front_proxy_key(self) -> Path:
        return self.folder / "front-proxy.key"

    @property
    def front_proxy_certificate(self) -> Path:
        """Shown by the API server to those that extend it; its own authority, too."""
        return self.folder / "front-proxy.crt"

    @property
    def certificates(self) -> Path:
        """The folder in which the API server puts the certificate that it makes for itself."""
        return self.folder / "certs"

    @property
    def authority(self) -> Path:
        """The API server's own certificate, which everyone trusts."""
        return self.certificates / "apiserver.crt"

    def kubeconfig(self, user: str) -> Path:
        return self.folder / f"{user.replace(':', '-')}.kubeconfig"


def create(credentials: Credentials) -> None:
    """Write tokens, keys and a kubeconfig for each user."""
    credentials.folder.mkdir(parents=True, exist_ok=True)
    tokens = {user: secrets.token_hex(16) for user in USERS}
    credentials.tokens.write_text(_token_table(tokens))
    for user, token in tokens.items():
        credentials.kubeconfig(user).write_text(yaml.safe_dump(_kubeconfig(credentials, token)))
    _openssl("genpkey", "-algorithm", "RSA", "-out", str(credentials.service_account_key))
    _self_sign(
        "/O=system:masters/CN=kube-apiserver",
        credentials.kubelet_client_key,
        credentials.kubelet_client_certificate,
    )
    _self_sign(
        f"/CN={FRONT_PROXY}", credentials.front_proxy_key, credentials.front_proxy_certificate
    )


def _token_table(tokens: Mapping[str, str]) -> str:
    """One line for each user, in the format of --token-auth-file: token, name, uid, groups."""
    return "".join(
        f'{token},{user},{number},"{",".join(USERS[user])}"\n'
        for number, (user, token) in enumerate(tokens.items(), start=1)
    )


def _kubeconfig(credentials: Credentials, token: str) -> dict[str, object]:
    cluster = {"server": credentials.url, "certificate-authority": str(credentials.authority)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": cluster}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": "user"}}],
        "current-context": "local",
    }


def _self_sign(subject: str, key: Path, certificate: Path) -> None:
    _openssl(
        *("req", "-x509", "-newkey", "rsa:2048", "-noenc", "-days", "2", "-subj", subject),
        *("-keyout", str(key), "-out", str(certificate)),
    )


def _openssl(*args: str) -> None:
    subprocess.run(["openssl", *args], check=True, capture_output=True)
