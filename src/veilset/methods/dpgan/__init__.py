"""A GAN with a private critic."""
