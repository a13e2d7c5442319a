"""Measurements of speed; each module runs with `python -m benchmarks.<name>`."""
