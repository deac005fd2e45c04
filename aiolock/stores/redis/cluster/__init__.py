"""Locks on a Redis Cluster: each operation goes to the master that has the slot of its name.

The client subscribes to its one channel on every master that it uses, by an ordinary SUBSCRIBE: the
script that grants a lock runs where the lock is, and counts the listeners there. The cluster also
sends each push to its other nodes, so a client gets it several times (`PushDeduplicator`). If that
is too much traffic, pushes can go by another channel: see `_sharded`.
"""
