"""Every committed picture: redrawn from committed results, or drawn by the run that measures it."""
