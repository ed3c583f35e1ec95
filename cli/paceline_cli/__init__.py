"""The `paceline` command: one manifest, served, planned, measured and explained on this machine."""
