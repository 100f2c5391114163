"""Scopes: what a user opens, holds, asks and leaves, on the host and on CUDA."""
