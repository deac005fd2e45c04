"""Frameworks: a module each, which imports its framework; import the one that you use."""
