"""Experiments of many runs: the paper's tables and figures, and methods side by side."""
