"""The mechanisms: one file for each way to touch private rows."""
