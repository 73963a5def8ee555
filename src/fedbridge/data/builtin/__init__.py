"""Tasks by name: synthetic, semi-synthetic and real ones, as the paper has them."""
