"""What a whole step launches and moves, and how long it should take, without a GPU."""
