"""From a model URI to weights and a tokenizer. Nothing here computes."""
