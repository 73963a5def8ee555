"""The mathematics of a round: what rules see, what they answer, and how updates are mixed."""
