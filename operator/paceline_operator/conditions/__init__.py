"""Pure decisions: (spec, Observed, now) -> Plan and conditions."""
