"""The live page of one pod: the file that a browser loads, and what it is sent."""
