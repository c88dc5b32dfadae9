"""Public generators: how they are trained."""
