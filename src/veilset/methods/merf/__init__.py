"""DP-MERF."""
