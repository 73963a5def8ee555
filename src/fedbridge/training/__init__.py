"""One client's work: the job, the training loop, the result, the target's side of a method."""
