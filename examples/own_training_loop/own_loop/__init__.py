"""Two towns help a third; every client trains in a loop of its own."""
