"""How far the operator still depends on the input."""
