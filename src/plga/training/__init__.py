"""Training: data, objective, recipe and loop."""
