"""The engine: the logic that all kinds of locks share, for any store.

To follow one acquisition, read in this order: `acquirer` (asks, waits, gives up), `acquisition`
(its state machine), `waiters` (sends its questions and receives the store's pushes), `backstop`
(when it asks again without a push), `grant`, `hold` (a grant that the client keeps), `watchdog`
(renews holds and notices losses), `lease` and `scope` (what the user works with).

Beside this path: `local_handoff` (hand-offs within one client), `releases` and `pending_finishes`
(commands that are sent again after a failure), `slow_monitor`, `labels` and `wait_graph`
(diagnostics of what waits or holds for long).
"""
