"""Scoring and selection on the device (Triton). Nothing here yet."""
