"""Data-free distillation (DPDFD)."""
