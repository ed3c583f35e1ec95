"""The user's own kubectl."""

import subprocess

from paceline_cli.errors import LocalError

_TIMEOUT_S = 30.0


class KubectlError(LocalError):
    """kubectl could not do what was asked; the message is what it complains of."""


def kubectl(*arguments: str) -> str:
    """Run the user's kubectl and return what it prints. Raises KubectlError."""
    try:
        done = subprocess.run(  # noqa: S603 - no shell, each argument stays one
            ["kubectl", *arguments],  # noqa: S607 - the one that the user has set up
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as problem:
        raise KubectlError("kubectl is not on the PATH") from problem
    except subprocess.TimeoutExpired as problem:
        raise KubectlError(f"kubectl gave no answer within {_TIMEOUT_S:.0f} s") from problem
    if done.returncode != 0:
        raise KubectlError(done.stderr.strip())
    return done.stdout
