"""`python -m local_cluster up | images | binaries`: the local cluster, by hand."""

# ruff: noqa: T201 - commands print

import argparse
import signal
import sys
from types import FrameType
from typing import NoReturn

from local_cluster import images, start
from local_cluster.cache import CACHE
from local_cluster.errors import ClusterError

_ENTER = CACHE / "kubeconfig"


def up() -> None:
    """Keep a whole cluster up until Ctrl-C or SIGTERM."""
    with start.whole() as cluster:
        _ENTER.unlink(missing_ok=True)
        _ENTER.symlink_to(cluster.kubeconfig)
        names = cluster.images
        print(f"\n  export KUBECONFIG={_ENTER}")
        print(
            f"  export OPERATOR_TAG={names['operator'].rpartition(':')[2]}"
            f" ENGINE_IMAGE={names['engine']} SIDECAR_IMAGE={names['sidecar']}\n"
        )
        print(f"API server, pods and Services answer at their own addresses, {cluster.url} first.")
        for part, name in cluster.images.items():
            print(f"  {part:10} {name}")
        print("Ctrl-C ends the cluster and everything in it.", flush=True)
        signal.pause()


def build_images() -> None:
    """Build the images into the store that every later cluster starts with."""
    wanted = images.wanted()
    with start.image_store() as node:
        for part, name in images.ready(node, wanted).items():
            print(f"{part:10} {name}")


def build_binaries() -> None:
    """Build every binary of the cluster."""
    for name, path in sorted(start.all_binaries().items()):
        print(f"{name:26} {path}")


_COMMANDS = {"up": up, "images": build_images, "binaries": build_binaries}


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    """Raise, so that a cluster is always taken down in order."""
    sys.exit(0)


def main() -> int:
    """Run one command; say in a sentence what the machine lacks."""
    parser = argparse.ArgumentParser(prog="python -m local_cluster", description=__doc__)
    parser.add_argument("command", choices=_COMMANDS)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    try:
        _COMMANDS[parser.parse_args().command]()
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
