"""What can go wrong with the cluster.

ClusterError
|- UnavailableError     this machine cannot run it: the message says what is missing
`- ClusterFailedError   it should have run: the message carries the end of the log
"""


class ClusterError(Exception):
    """The local cluster cannot be used."""


class UnavailableError(ClusterError):
    """The machine lacks something; the message is one sentence that names it."""


class ClusterFailedError(ClusterError):
    """A part of the cluster did not start or did not last."""
