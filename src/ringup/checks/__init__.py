"""What can be wrong: pure functions from a `Cluster` to findings.  Importing this fills the registry."""
