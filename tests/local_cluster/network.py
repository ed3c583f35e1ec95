"""The addresses of the enclosed cluster, and the one link that joins it to the machine.

Inside, a bridge carries the node's address and the default route, and leads nowhere: no packet
leaves. A veth pair gives the machine routes to the node, to pods and to Services.
"""

import subprocess
from pathlib import Path

NODE = "10.99.0.1"
PODS = "10.88.0.0/16"
SERVICES = "10.96.0.0/16"
DNS = "10.96.0.10"
"""Where the kubelet has pods look up names; nobody answers unless a test runs CoreDNS."""

MACHINE = "10.98.0.1"
"""This machine, as the node and its pods reach it."""

_NODE_END = "10.98.0.2"
_HOST_DEVICE = "paceline0"


def setup(resolv_conf: Path) -> tuple[tuple[str, ...], ...]:
    """What process 1 of the namespaces does first; that file becomes its /etc/resolv.conf."""
    return (
        ("ip", "link", "set", "lo", "up"),
        ("ip", "link", "add", "node", "type", "bridge"),
        ("ip", "address", "add", f"{NODE}/24", "dev", "node"),
        ("ip", "link", "set", "node", "up"),
        ("ip", "route", "add", "default", "dev", "node"),
        ("sysctl", "-qw", "net.ipv4.ip_forward=1"),
        ("mount", "--bind", str(resolv_conf), "/etc/resolv.conf"),
        ("mount", "-t", "tmpfs", "tmpfs", "/run"),
    )


def join(pid: int) -> None:
    """Link the machine to that process's network namespace; the link ends with the namespace."""
    part()
    inside = ("nsenter", f"--net=/proc/{pid}/ns/net", "ip")
    _run(
        "ip", "link", "add", _HOST_DEVICE, "type", "veth", "peer", "name", "host", "netns", str(pid)
    )
    _run(*inside, "address", "add", f"{_NODE_END}/30", "dev", "host")
    _run(*inside, "link", "set", "host", "up")
    _run("ip", "address", "add", f"{MACHINE}/30", "dev", _HOST_DEVICE)
    _run("ip", "link", "set", _HOST_DEVICE, "up")
    for subnet in (f"{NODE}/32", PODS, SERVICES):
        _run("ip", "route", "add", subnet, "via", _NODE_END)


def part() -> None:
    """Remove the link, if a killed run left it or the kernel has not removed it yet."""
    subprocess.run(["ip", "link", "delete", _HOST_DEVICE], capture_output=True, check=False)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
