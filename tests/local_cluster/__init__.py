"""A whole Kubernetes on one machine, without a registry: for tests and for `make cluster`."""
