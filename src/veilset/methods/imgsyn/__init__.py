"""DP-ImgSyn."""
