"""Locks on a Redis Cluster: each operation goes to the master that has the slot of its name.

Read `_store` first (what takes more than one command to one master), then `_router` (finds the
master of a slot, or lets the operation wait) and `_node` (one master: a `Session` that is opened
when needed, and the same operations as on a single server). `_pending` keeps operations until a
master is open. `_redirects` takes refused commands (``MOVED``, ``ASK``) out of a node's pipeline,
so that the router sends them on, in order. `_topology` is the map of the slots, `_masters` keeps it
up to date, and `_seeds` are the nodes that are asked first. Of the stores on a single server, none
imports this folder.

The client subscribes to its one channel on every master that it uses, by an ordinary SUBSCRIBE: the
script that grants a lock runs where the lock is, and counts the listeners there. The cluster also
sends each push to its other nodes, so a client gets it several times (`PushDeduplicator`). If that
is too much traffic, pushes can go by another channel: see `_sharded`.
"""
