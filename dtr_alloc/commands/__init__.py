"""The commands of `dtr-alloc`: those that run a program, and those that read traces."""
