"""Which request gets how many tokens of the next step. No torch here."""
