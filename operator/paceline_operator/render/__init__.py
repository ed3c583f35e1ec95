"""Pure: a Plan -> manifests, one kind a file."""
