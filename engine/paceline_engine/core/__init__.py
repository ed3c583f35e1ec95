"""The nouns of a step: requests, batches, sizes, and the tensors that one needs."""
