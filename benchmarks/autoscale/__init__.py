"""Autoscalers on one ramp: what each reads, what it costs, and what it keeps of the SLA."""
