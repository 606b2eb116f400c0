"""Training scripts for the tests of `ringup run`, and the runs of them in the lab."""
