"""L0 and L1: how many tokens a step may hold, from a step-time model fitted live. No torch."""
