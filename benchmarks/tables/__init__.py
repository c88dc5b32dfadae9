"""Tables of README and docs, made from the lines of benchmarks/results."""
