"""Who may come in: a bounded queue, counted on arrival."""
