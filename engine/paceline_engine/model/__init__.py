"""The decoder: what the weights mean and what is computed with them."""
