"""The DTR runtime: what may be forgotten, what is forgotten first, and how it comes back."""
