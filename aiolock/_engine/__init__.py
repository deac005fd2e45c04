"""What makes any lock work on any store.

Read one acquisition in this order: `acquirer` (asks, waits, gives up), `acquisition` (what is
known of it), `waiters` (what it asks, and what is pushed to it), `backstop` (when it asks again by
itself), `grant`, `hold` (what was granted, as it is kept), `watchdog` (renews it, notices its
loss), `lease` and `scope` (what its user has of it).
"""
