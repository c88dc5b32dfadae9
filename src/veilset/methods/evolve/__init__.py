"""Private Evolution: candidates that private images vote for, varied from round to round."""
