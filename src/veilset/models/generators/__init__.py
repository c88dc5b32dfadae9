"""Networks from latents to images."""
