"""The vault and the only ways to touch it: budget, events, accounting, noise, ledger, account, mechanisms."""
