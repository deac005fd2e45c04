"""The engine: what makes any lock work on any store.

Read one acquisition in this order: `acquirer` (asks, waits, gives up), `acquisition` (its state
machine), `waiters` (what it asks, and what is pushed to it), `backstop` (when it asks again by
itself), `grant`, `hold` (the grant as the client keeps it), `watchdog` (renews it, notices its
loss), `lease` and `scope` (what its user has of it).
"""
