"""Distilled images and a student (PLDK)."""
