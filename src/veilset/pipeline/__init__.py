"""The whole job in order: load, plan, fit, sample, certify."""
