"""Files and batches: requests that wait for a quiet moment, and their answers, on disk."""
