"""Three simulated scenes for the pages: a batch size that moves, a flood, and bursts."""
