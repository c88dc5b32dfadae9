"""Networks from images to logits."""
