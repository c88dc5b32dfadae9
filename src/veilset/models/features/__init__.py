"""Fixed features of images."""
