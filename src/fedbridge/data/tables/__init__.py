"""Tables: one CSV with a site column, a CSV per site, or one's own CSV where it lies."""
