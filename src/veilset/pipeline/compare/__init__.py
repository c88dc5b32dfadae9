"""Comparisons: suites, cells, results."""
