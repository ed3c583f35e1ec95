"""How far the simulated engine is from the real one, on this machine's CPU."""
