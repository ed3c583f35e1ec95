"""In which order requests should wait: simulated before anything was built."""
