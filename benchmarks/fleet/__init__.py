"""What a fleet of pods costs the tuner: real rounds and a real client, fake sidecars."""
