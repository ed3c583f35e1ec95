"""The InferenceService custom resource as typed models, which replace its raw dicts."""
