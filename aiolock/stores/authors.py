"""What the author of a store builds on: the protocol is here already, as a pure state machine.

A store that keeps the state of each name whole, and can change it in one atomic step, need not know
the protocol. This module brings together what it does need. In the order of the work:

1. Inherit from `Operations`. It has all methods of `~aiolock.store.Store` that start something, and
   makes an `Operation` of each call. What is left to write is ``open``, ``aclose``, ``snapshot``,
   which lists what there is, and ``_call(operation)``, which starts the operation and returns its
   future. ``_token`` as well, wherever an operation may be carried out twice: two resizes are told
   apart by it.
2. To carry out an operation, load what is kept of its ``names``: for each a `NameState` (`decode`)
   and the last fence. Where nothing is kept that is ``NameState()``, and 0.
3. Then, and not before, read the clock, and ask who lives.
4. Call ``operation.run(steps)``. It is plain code, and does not wait for anything. ``steps`` is
   yours, as `Steps` says: for each name it makes a `Step` of the state, the clock, who lives and
   the last fence, and lets the given function work on that. Afterwards ``step.fence`` is the last
   fence, and ``step.pushes`` is to be sent.
5. Save it in one atomic step: the state (`encode`, nothing where it is ``idle``), the fence, and
   what is to be pushed to other clients (`encode_push`), as long as they live. Save nothing where
   nothing has changed. Where somebody else was faster, begin again at 2: an operation may be run
   as often as you like, only what is saved counts.
6. Answer: set the result of the future, and deliver the pushes that are for this very client
   (``push.deliver(name, inbox)``).
7. Ring the other clients. Each reads what was left for it (`decode_push`), takes it out, and
   delivers it to its own inbox.

Where nobody knows whether it was saved, because the reply was lost, begin again at 2, with
``steps.again`` true. See to it that the first attempt, should it arrive late, has no effect any
more. Call ``inbox.reconnected()`` afterwards, for pushes may have been lost with the reply.

What a later version has written may be unreadable: `decode` and `decode_push` raise one of
`UNREADABLE`. Such a state fails what is asked of its name, and nothing else. Such a push is left
out.

``examples/document_store.py`` is all of this, for any database with compare-and-swap. Whether it is
right, `aiolock.testing.StoreContract` says. So far these are the names that are meant for authors;
what else is in the modules they come from may change.
"""

from aiolock.stores._codec import UNREADABLE, decode, decode_push, encode, encode_push
from aiolock.stores._operations import Operation, Operations, Steps, Told
from aiolock.stores.machine import NameState, Push, Step

__all__ = [
    "UNREADABLE",
    "NameState",
    "Operation",
    "Operations",
    "Push",
    "Step",
    "Steps",
    "Told",
    "decode",
    "decode_push",
    "encode",
    "encode_push",
]
