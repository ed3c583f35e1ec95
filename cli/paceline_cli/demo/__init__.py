"""Break an SLA, let the tuner mend it, report."""
