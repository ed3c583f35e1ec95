"""The tuner's evaluation: workloads, arms, figures, and the page that shows them."""
