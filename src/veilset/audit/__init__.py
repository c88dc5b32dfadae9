"""The audit: attempts to break our own guarantees. It can refute a claim, never prove one; no method may import it."""
