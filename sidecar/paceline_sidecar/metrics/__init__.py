"""What is measured: plain counts and records, and the metric families made of them at a scrape."""
