"""Published data sets on disk: what there is, getting it, and checking it."""
