"""What was measured: plain counts, read when somebody asks."""
