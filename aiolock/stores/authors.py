"""The parts for the author of a store: the protocol is here already, as a pure state machine.

A store that keeps the state of each name as a whole, and can change it in one atomic step, need not
implement the protocol. This module collects what it does need. In the order of the work:

1. Inherit from `Operations`. It has all methods of `~aiolock.store.Store` that start something, and
   makes an `Operation` of each call. You write ``open``, ``aclose``, ``snapshot``, which lists the
   names that are in use, and ``_call(operation)``, which starts the operation and returns its
   future. Also write ``_token`` if an operation may be carried out twice: it tells two resizes
   apart.
2. To carry out an operation, load what is kept of its ``names``: for each a `NameState` (`decode`)
   and the last fence. If nothing is kept, that is ``NameState()``, and 0.
3. Then, and not before, read the clock, and find out which clients are alive: what was read before
   the state was locked may be older than the state.
4. Call ``operation.run(steps)``. It is plain code, and does not wait for anything. You provide
   ``steps``, an object with the methods of `Steps`: for each name it makes a `Step` of the state,
   the clock, the living clients and the last fence, and applies the given function to it.
   Afterwards ``step.fence`` is the last fence, and ``step.pushes`` must be sent.
5. Save in one atomic step: the state (`encode`; nothing if it is ``idle``), the fence, and the
   pushes for other clients (`encode_push`), as long as those are alive. Save nothing if nothing has
   changed. If another process was faster, begin again at 2: an operation may be run as often as you
   like, only what is saved counts.
6. Answer: set the result of the future, and deliver the pushes that are for this very client
   (``push.deliver(name, deliver)``).
7. Notify the other clients. Each reads the pushes that were left for it (`decode_push`), deletes
   them, and delivers them to its own deliver.

If the reply was lost, so that it is unknown whether it was saved, begin again at 2, with
``steps.again`` true. Make sure that the first attempt, if it arrives late, has no effect any more.
Call ``deliver.reconnected()`` afterwards, because pushes may have been lost with the reply.

What a later version has written may be unreadable: `decode` and `decode_push` raise one of
`UNREADABLE`. Such a state fails the operations on its name, and nothing else. Such a push is left
out.

Two classes do a part of this for a store that works in the event loop and saves each name by
itself. `OperationsByName` is `Operations` with ``_call``, ``_token``, ``snapshot``, and a task for
each name in use. You write ``_carry_out(name, operations)``, which returns the answers, and
``_names``, which lists names; ``open`` calls ``_begin``, and ``aclose`` awaits ``_end``. `Document`
is ``steps`` for a store that keeps all of a name in one text: it does 2, 4 and 5, but does not load
or save that text. If the operation was certainly not carried out, raise ``refusal(text)``.

``examples/document_store.py`` is all of this, in a hundred lines, for any database with
compare-and-swap. Test a store with `aiolock.testing.StoreContract`. So far only these names are
meant for authors; anything else in the modules they come from may change.
"""

from aiolock.stores._by_name import OperationsByName
from aiolock.stores._codec import UNREADABLE, decode, decode_push, encode, encode_push
from aiolock.stores._document import Document, about_us
from aiolock.stores._operations import Operation, Operations, Steps, Told
from aiolock.stores._outcomes import refusal
from aiolock.stores.machine import NameState, Push, Step

__all__ = [
    "UNREADABLE",
    "Document",
    "NameState",
    "Operation",
    "Operations",
    "OperationsByName",
    "Push",
    "Step",
    "Steps",
    "Told",
    "about_us",
    "decode",
    "decode_push",
    "encode",
    "encode_push",
    "refusal",
]
