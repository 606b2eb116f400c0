"""The version of ringup, in a module that imports nothing."""

__version__ = "0.1.0"
SITE = "https://ringup.readthedocs.io/en/stable"
"""The documentation's URL, without a slash at the end."""
SOURCE = "https://github.com/ringup-project/ringup"
