"""Counts the launches and bytes of a whole step, and predicts its time, without a GPU."""
