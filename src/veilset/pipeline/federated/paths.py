"""What a federation's port offers besides Flower's Fleet API. Apart from `messages.py`, which needs Flower."""

HEALTH, CHECK = "/health", "/veilset/check"
