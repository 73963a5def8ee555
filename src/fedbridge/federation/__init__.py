"""A federation and its round loop: options, who takes part, what the evidence is."""
