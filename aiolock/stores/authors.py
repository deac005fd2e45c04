"""The parts for the author of a store: the protocol is here already, as a pure state machine.

Read `aiolock.protocol` first: the operations, their answers, and the events. Then `aiolock.Store`:
``open``, ``aclose``, ``features``, and ``submit``, which starts an operation and returns the future
of its answer. Then take the first of these that your database allows:

* It has documents and compare-and-swap: `~aiolock.stores.documents.DocumentStore` is your store.
  Write its `~aiolock.stores.documents.Database`: eight short methods, each of which is one request.
* It can change the row of one name in a transaction, by a driver for asyncio: write a store with
  `ByName` and `Document`, in the order of work below.
* Anything else, such as a driver for threads, or a format of your own: use `Step` itself.

`ByName` has a task for each name in use, and does ``submit``. You give it two functions:
``carry_out(name, parts)``, which returns the answers, and ``names(start, most)``, which lists
names. A *part* is an operation on one name, or one grant of a `Renew`. ``open`` calls ``begin``,
and ``aclose`` awaits ``end``. The order of work in ``carry_out``:

1. Load the text that is kept of the name, and lock it.
2. Then, and not before, read the clock, and find out which clients are alive: what was read before
   the state was locked may be older than the state. (A store with compare-and-swap may know both
   already, if its save is guarded by them: see `Document.judged_clients`.)
3. Make a `Document`, and have it ``run`` each part. It is plain code, and does not wait for
   anything.
4. Save what ``changed()`` returns, in one atomic step; nothing if that is None. If another process
   was faster, begin again at 1: parts may be run as often as you like, only what is saved counts.
5. Deliver the events of ``pushes``, which are for this very client, and return the answers.
6. Notify the clients in ``mail``. Each of them submits a `Fetch` of the name: whatever is carried
   out on a document takes the pushes for this client out of it.

A database without a clock, one with sessions, one that can send mail in the transaction that saves
the document, and one that takes many requests at once: see the arguments and methods of `Document`,
and `Sessions` and `Batches`.

If the reply was lost, so that it is unknown whether it was saved, begin again at 1, with
``again=True``. Make sure that the first attempt, if it arrives late, has no effect any more.
Deliver `Reconnected` afterwards, because pushes may have been lost with the reply. If it was
certainly not carried out, raise ``refusal(text)``.

With a format of your own, there is a `NameState` for each name (``NameState()`` if nothing is
kept), and the last fence (0). Make a `Step` of them, and call ``run_part(step, part, again=...)``
for each of ``parts_of(operation)``. Afterwards, ``step.fence`` is the last fence. Save it, the
state (`encode`; nothing if it is ``idle``), and the ``step.pushes`` for other clients
(`encode_push`), as long as those are alive.

What a later version has written may be unreadable: `decode` and `decode_push` raise one of
`UNREADABLE`. Such a state fails the operations on its name, and nothing else. Such a push is left
out.

Test a store with `aiolock.testing.StoreContract`, and one that has compare-and-swap with
`~aiolock.testing.SwapContract`, too. So far only these names are meant for authors; anything else
in the modules they come from may change.
"""

from aiolock.stores._batches import Batches
from aiolock.stores._by_name import ByName
from aiolock.stores._codec import UNREADABLE, decode, decode_push, encode, encode_push
from aiolock.stores._document import Changed, Document, Kept, about_us
from aiolock.stores._effects import Push
from aiolock.stores._operations import Fetch, Part, joined, parts_of, run_part
from aiolock.stores._outcomes import closed, refusal
from aiolock.stores._sessions import Session, Sessions
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step

__all__ = [
    "UNREADABLE",
    "Batches",
    "ByName",
    "Changed",
    "Document",
    "Fetch",
    "Kept",
    "NameState",
    "Part",
    "Push",
    "Session",
    "Sessions",
    "Step",
    "about_us",
    "closed",
    "decode",
    "decode_push",
    "encode",
    "encode_push",
    "joined",
    "parts_of",
    "refusal",
    "run_part",
]
