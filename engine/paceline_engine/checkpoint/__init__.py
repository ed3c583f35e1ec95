"""Finds a model by its URI and reads its weights and tokenizer. Nothing here computes."""
