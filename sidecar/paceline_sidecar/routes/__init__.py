"""HTTP paths, one concept a file; each translates and delegates."""
