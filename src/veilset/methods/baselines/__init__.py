"""Methods of the literature that the five main systems are measured against."""
