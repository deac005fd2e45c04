"""One text with all that a store keeps of a name: state, last fence, and pushes for others."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping
from typing import Any, Final

from aiolock.stores._codec import UNREADABLE, decode, decode_push, encode, encode_push
from aiolock.stores._operations import Part, run_part
from aiolock.stores.machine import NameState, Push, Step

_KEPT: Final = 600.0
"""Seconds for which a document is kept when all in it is over. The first fence after that is the
clock's, which is far past the last fence; and no copy of a save arrives as late."""
_FRESH: Final = 60_000_000
"""Microseconds after which an unchanged document is saved again, so that it is kept while clients
ask for it."""


def about_us() -> str:
    """A client's host and process as it writes them down for others, for `Document`."""
    return f"{os.getpid()} {socket.gethostname()}"


class Document:
    """All that is kept of one name, at one moment: parts of operations are carried out on it.

    ``text`` is what was kept, or empty; ``living`` has the metadata of each living client
    (`about_us`). With ``again``, the parts may have been carried out already, with their answers
    lost. Afterwards, save what `changed` returns, deliver the events of the `pushes`, and notify
    the clients in `mail`.

    ``now`` is the store's clock, in µs. Time does not run backwards for a name: if it was saved at
    a later time, that counts. ``slack`` is for a store without a clock: see `Step`.
    """

    def __init__(
        self,
        name: str,
        text: str,
        client: str,
        now: int,
        living: Mapping[str, str],
        *,
        again: bool,
        slack: int = 0,
    ) -> None:
        self._name, self._client, self._living = name, client, living
        self._again, self._slack = again, slack
        kept: tuple[int, str, list[list[str]], int] = json.loads(text) if text else (0, "", [], now)
        self._fence, state, mail, self._saved_at = kept
        self._now = max(now, self._saved_at)
        self._before = [*kept[:3]]
        self._state = decode(state) if state else NameState()
        self.pushes: list[Push] = []
        """The pushes for this client."""
        self.mail: list[list[str]] = []
        """Other clients that are alive, and a push for each, as text."""
        for to, push in mail:
            if to == client:
                with contextlib.suppress(*UNREADABLE):  # of a later version
                    self.pushes.append(decode_push(push, name))
            elif to in living:
                self.mail.append([to, push])

    def run(self, part: Part) -> Any:
        """Carry out a part of an operation; its answer."""
        step = Step(
            *(self._name, self._state, self._now, self._listens, self._fence),
            metadata=self._metadata,
            slack=self._slack,
        )
        answer = run_part(step, part, again=self._again)
        self._fence = step.fence
        for push in step.pushes:
            if push.client == self._client:
                self.pushes.append(push)
            elif push.client in self._living:
                self.mail.append([push.client, encode_push(push)])
        return answer

    def _listens(self, client: str) -> bool:
        return client == self._client or client in self._living

    def _metadata(self, client: str) -> tuple[str, int]:
        pid, _, host = self._living.get(client, "0 ").partition(" ")
        return host, int(pid)

    def changed(self, *, anyway: bool = False) -> tuple[str, float] | None:
        """The text to save, and for how many seconds it is needed; None if nothing has changed.

        ``anyway``: save it also then.
        """
        after = [self._fence, "" if self._state.idle else encode(self._state), self.mail]
        if after == self._before and self._now - self._saved_at < _FRESH and not anyway:
            return None
        over = self._state.over / 1000 - self._now / 1_000_000
        return json.dumps([*after, self._now]), max(over, 0) + _KEPT
