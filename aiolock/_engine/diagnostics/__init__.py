"""What tells people about locks: observers, labels, slow waits and holds, deadlocks.

An acquisition reads one attribute for each of them while nobody uses it.
"""
