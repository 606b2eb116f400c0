"""What becomes of a run after a failed attempt: the decision, its table of causes, how progress is read."""
