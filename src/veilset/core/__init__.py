"""What every layer needs: errors, files, randomness, registries, progress, the records protocol."""
