"""The primitives that users create: descriptions, without state or I/O of their own.

Each is a `Policy` and an engine: a lock waits and is held by the engine. The other kinds are locks
with other rules at the store (`Rule`), and a few operations of their own.
"""
