"""What is on disk: the folder of a run and of a comparison, checkpoints, who is at work there."""
