"""The custom resource as typed models: the only reading of raw dicts."""
