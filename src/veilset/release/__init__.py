"""What is published: the directory, its certificate, signature, card, verification and exports."""
