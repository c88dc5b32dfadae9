"""What the tables show: one module for each page or subject, each with `TABLES`, by name."""
