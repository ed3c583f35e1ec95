"""The tuner, a pure library: (spec, telemetry, state, now) -> decision. No I/O, no clock."""
