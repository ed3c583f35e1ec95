"""The engine as a process: its worker, its socket to the sidecar, its watchdog."""
