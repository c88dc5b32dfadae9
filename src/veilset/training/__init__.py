"""Training: the DP-SGD engine and ordinary training."""

from veilset.training.threads import set_wait_policy

# Read once, when torch loads its thread pool; importing this package before torch is enough.
set_wait_policy()
