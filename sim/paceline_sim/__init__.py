"""A simulated serving engine: iteration by iteration, with the engine's own pacer."""
