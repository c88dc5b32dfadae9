"""The tables of the papers, at a scale that two cores can run: `scripts/bench papers/NAME`; one module for each."""
