"""The step loop: it schedules, launches, settles and records; limits and requests come in here."""
