"""How like other images released ones are."""
