"""The sanitized GAN over several sites: each clips and noises at home, the server sees noised gradients alone."""
