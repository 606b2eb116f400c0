"""After a failed attempt of a run: the decision, its table of causes, and reading progress."""
