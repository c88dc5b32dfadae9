"""What a release is worth: students trained on it and scored on real data. Results are not for release."""
