"""What would a budget cost? A program's step is recorded, and simulated under each budget."""
