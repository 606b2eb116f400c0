"""Output of tools and files as facts: pure functions, each with an example."""
