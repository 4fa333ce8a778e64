"""`make bench`: fedcore against hand-written TensorFlow for the same work, in one run, as ratios."""
