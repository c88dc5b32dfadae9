"""Training: the DP-SGD engine and ordinary training."""
