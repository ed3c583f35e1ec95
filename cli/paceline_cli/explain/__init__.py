"""Say why the limits are what they are."""
