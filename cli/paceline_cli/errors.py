"""Errors of local mode. Each message is a sentence that a person can act on.

LocalError
├── ManifestError   the file cannot be served                (manifest.py)
├── StartError      the children did not get ready           (live.py)
├── NoServiceError  nothing runs that fits                    (state.py)
├── ModelFileError  the model's size cannot be read here      (model_files.py)
├── PlanError       a plan lacks something                    (plan.py)
├── RecallError     nothing fitting is remembered             (recalled.py)
├── SweepError      a point could not be measured             (sweep.py)
├── ClusterError    the cluster's answer cannot be explained  (cluster.py)
└── ChatError       the server refused or is not there        (chat.py)
"""


class LocalError(Exception):
    """Shown without a traceback; the command exits with 1."""
