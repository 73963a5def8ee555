"""What a user asks for: run, compare, watch, predict, the demo."""
