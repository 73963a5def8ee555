"""How good a model is, how sure one can be of it, and which method is better."""
