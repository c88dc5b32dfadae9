"""A GAN with sanitized gradients of shard critics."""
