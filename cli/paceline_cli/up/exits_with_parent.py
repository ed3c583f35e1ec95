"""Runs a program that ends when its parent does: `python -m …exits_with_parent PROGRAM …`.

A parent that is killed outright cannot stop its children; the kernel can (Linux).
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for SIGTERM at the parent's death, then become the program."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - the command is ours, there is no shell


if __name__ == "__main__":
    main()
