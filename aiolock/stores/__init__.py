"""The stores: the places where locks are kept. The core loads each by its name (`aiolock._target`).

Read `aiolock.protocol` first (operations, answers, events), and then `aiolock.store.Store`. A store
does with an operation what `machine` says: `machine.Step` is the protocol without I/O.

* `memory`, `sqlite`, `mysql` and `documents` run the machine; `memory` is the shortest to read.
* `redis` and `postgres` do the same on the server, as scripts and as functions.
* `quorum` makes one store of several servers, by votes.
* `authors` has the parts for stores of your own, and says in which order to join them.

What several stores share is in the private modules beside these: states and pushes as text
(`_codec`), an operation in parts (`_operations`), until when a copy of a command may act
(`_retry_window`), a thread for blocking drivers (`_worker`), a task for each name (`_by_name`).
"""
