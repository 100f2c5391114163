"""How far is a policy from the best that any could do? Proven bounds, and what a search finds."""
