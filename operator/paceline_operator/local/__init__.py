"""Local mode: one InferenceService on this machine, with the same rules, tuner and API."""
