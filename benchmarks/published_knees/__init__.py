"""Two published knees, replayed in the simulator: as they were served, and with the tuner."""
