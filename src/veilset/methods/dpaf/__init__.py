"""DPAF."""
