"""Errors of the command line. Each message is a sentence that a person can act on.

LocalError
├── ManifestError     the file cannot be served                 (manifest.py)
├── NoServiceError    nothing runs that fits                    (local_state.py)
├── KubectlError      kubectl could not do what was asked       (kubectl.py)
├── StartError        the children did not get ready            (up/live.py)
├── ChatError         the server refused or is not there        (chat/conversation.py)
├── DiagnoseError     the pod gives nothing to judge by         (diagnose/pod.py)
├── PlanError         a plan lacks something                    (plan/model_sizes.py)
├── ModelFileError    the model's size cannot be read here      (plan/model_files.py)
├── RecallError       nothing fitting is remembered             (plan/warm_start_fit.py)
├── BadInputError     the input cannot be used                  (this file)
├── SweepError        a point could not be measured             (bench/sweep.py)
└── CalibrationError  the machine's speed could not be measured (traffic/calibration.py)
"""


class LocalError(Exception):
    """Shown without a traceback; the command exits with 1."""


class BadInputError(LocalError):
    """The command's input cannot be used; it exits with 2."""
