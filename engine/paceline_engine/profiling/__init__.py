"""What is measured at start: step times, and which way of running is faster."""
