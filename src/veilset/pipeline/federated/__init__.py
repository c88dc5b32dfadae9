"""A federation of sites that keep their images: any method of noisy sums, each clipped, noised and paid at home."""
