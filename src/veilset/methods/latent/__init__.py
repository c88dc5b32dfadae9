"""Private Gaussians inside a public generator."""
