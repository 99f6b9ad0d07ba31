"""Serving: collapsed checkpoints on engines that are not ours."""
