"""Two simulated scenes for the pages: a batch size that moves, and a flood of batch requests."""
