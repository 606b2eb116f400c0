"""Text of tools and files to facts: pure, every function with its example."""
