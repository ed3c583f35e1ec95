"""The tables of docs/metrics.md and docs/processes.md, written from what the processes declare.

Here rather than in a part: parts do not import each other, and no image needs it.
"""
