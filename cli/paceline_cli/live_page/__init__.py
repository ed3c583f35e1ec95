"""The live view of a service as a page in the browser: read -> content -> stream."""
