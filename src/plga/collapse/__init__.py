"""Collapse: freeze the operator into the checkpoint, and measure what that costs."""
