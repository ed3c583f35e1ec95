"""The tuner, a pure library: (spec, telemetry, memory, now) -> decision. No I/O, no clock."""
