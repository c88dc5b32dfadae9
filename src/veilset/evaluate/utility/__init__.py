"""What students learn from a release."""
