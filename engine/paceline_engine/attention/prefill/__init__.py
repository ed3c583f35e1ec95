"""Who attends for the prompts of a step: our kernel, or another's where it is right and faster."""
