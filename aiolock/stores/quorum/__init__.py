"""A fair lock over several independent servers, of which a majority decides.

So far this is the counting of votes, which `tests/quorum` models: no store is built on it yet.
"""
