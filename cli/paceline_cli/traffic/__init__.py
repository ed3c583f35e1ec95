"""Open-loop traffic: planned ahead, sent on time whatever the server does, measured at the end."""
