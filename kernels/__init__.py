"""Scoring and selection as data-parallel jobs: in plain torch (`reference`), and in Triton."""
