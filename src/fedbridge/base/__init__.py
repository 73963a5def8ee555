"""What everybody stands on: errors, names, checks of options, files, processes, where data lie."""
