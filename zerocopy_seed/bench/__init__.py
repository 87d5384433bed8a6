"""Benchmarks that compare the whole with its parts, in one process, so the machine's mood cancels out."""
