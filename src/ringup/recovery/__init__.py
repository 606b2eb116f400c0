"""
What becomes of a run after a failed attempt: the decision, its table of causes, and how progress is read.

`decision` and `table` are pure.  `training_progress` reads what a node or the output of the ranks reports.
"""
