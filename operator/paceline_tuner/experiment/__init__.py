"""Two policies on the pods of one service: who gets which, and when the difference is real."""
