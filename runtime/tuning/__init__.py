"""Which settings of the score serve a program best? A search over simulations."""
