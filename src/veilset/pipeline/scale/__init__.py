"""Large releases: images made in units by any number of processes and machines, and their shards put together."""
