"""PATE."""
