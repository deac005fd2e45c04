"""What the server does: a method for each script, and each script is one step."""

from __future__ import annotations

from typing import Final

from tests.proof.protocol.model import (
    Answer,
    Holder,
    Place,
    Push,
    Report,
    Safeguards,
    Server,
    Terms,
    Tombstone,
    Who,
)

RESERVED: Final = -1


class AtServer:
    """The server, carrying out one command."""

    def __init__(
        self,
        server: Server,
        guards: Safeguards,
        terms: Terms,
        *,
        listening: tuple[bool, ...],
        from_the_end: bool = False,
    ) -> None:
        self.guards = guards
        self.ttl, self.claim, _, self.renews, self.ahead = terms
        self.listening = listening
        """By client, whether anybody is subscribed to its channel."""
        self.from_the_end = from_the_end
        """Whether the next is the last in the queue, as its share may have it."""
        self.holders = list(server.holders)
        self.queue = list(server.queue)
        self.tombstones = list(server.tombstones)
        self.last = server.last
        self.clock_is_back = server.clock_is_back
        self.tickets = server.tickets
        self.highest = server.highest
        self.fence_fell = server.fence_fell
        self.acted_late = server.acted_late
        self.sent_away = server.sent_away
        self.overtook = server.overtook
        self.floor = 0
        self.pushes: list[tuple[int, Push]] = []
        self.push: Push | None = None
        """What comes with the reply."""

    def after(self) -> Server:
        """What the server is now."""
        if not self.last and not self.holders:
            self.clock_is_back = False  # a clock is not behind for as long as a lock lies idle
        return Server(
            tuple(self.holders),
            tuple(self.queue),
            tuple(sorted(self.tombstones)),
            self.last,
            self.clock_is_back,
            self.tickets,
            self.highest,
            self.fence_fell,
            self.acted_late,
            self.sent_away,
            self.overtook,
        )

    def acquire(self, who: Who, ticket: int, age: int, *, looks: bool = False) -> Answer:
        """The lock, or a place in its queue. Asking again is harmless and keeps the place.

        ``looks``: a newcomer, which looks who is dead in the queue.
        """
        known = self._known(who)
        if known is not None:
            return known
        displaced = ticket > 0 and all(place.who != who for place in self.queue)
        if not self.holders and not self.queue:
            return Answer("granted", self._grant(who, self.ttl), self.ttl, displaced=displaced)
        if ticket < 0:
            free = not self.holders and self._advance(who.client)
            if not free or not self.guards.tries_pass_the_dead:
                return Answer("busy")
            return Answer("granted", self._grant(who, self.ttl), self.ttl)
        newcomer = not ticket and all(place.who != who for place in self.queue)
        newcomer = newcomer and bool(self.holders)  # to one that was simply taken
        ticket = self._enqueue(who, ticket)
        if looks:
            self.queue = [place for place in self.queue if self._is_there(place, who.client)]
        if not self.holders and self._advance(who.client, asking=who):
            return Answer("granted", self._grant(who, self.ttl), self.ttl, displaced=displaced)
        until = self.holders[0].left
        if self.queue[0].who != who:
            until = min(until, self.claim)
        before = self._before(who.client) if newcomer and self.ahead else None
        return Answer("queued", ticket, until, age, displaced, before=before)

    def _known(self, who: Who) -> Answer | None:
        """The answer for who was given up, or is the holder. Who held it for too long is gone."""
        if any(tombstone.who == who for tombstone in self.tombstones):
            return Answer("busy")  # so it is an old copy: nobody reads this
        if self.holders:
            holder = self.holders[0]
            if holder.left:
                if holder.who == who and self.guards.holders_are_answered_again:
                    left = holder.left if self.guards.answered_with_what_is_left else self.ttl
                    return Answer("granted", holder.fence, left)
            elif self.guards.leases_end:
                self._reap(holder)
        return None

    def _before(self, client: int) -> tuple[int, int] | None:
        """Who stands directly before the last in the queue, if it is of this client too."""
        before = self.queue[-2].who if len(self.queue) > 1 else self.holders[0].who
        fence = 0 if len(self.queue) > 1 else self.holders[0].fence
        return (before.task, fence) if before.client == client else None

    def report_handoff(self, client: int, report: Report) -> Answer:
        """This client has handed the lock on: the last of those has it now, for a claim."""
        source = Who(client, report.source)
        target = Holder(Who(client, report.via[-1]), report.fence, self.claim)
        if all(holder[:2] != (source, report.since) for holder in self.holders):
            if any(holder[:2] == target[:2] for holder in self.holders):
                return Answer("done")
            if self.guards.only_holders_pass:
                return Answer("refused")
        self.holders = [h for h in self.holders if h[:2] != (source, report.since)]
        self.holders.append(target)
        self.last = max(self.last, report.fence)
        if self.guards.passed_leave_the_queue:
            via = {Who(client, task) for task in report.via}
            self.queue = [place for place in self.queue if place.who not in via]
        return Answer("passed")

    def release(self, who: Who, fence: int, buried: int = 0) -> Answer:
        """Out of the holders or out of the queue, and on to the next.

        ``buried``: and nothing that comes within so many ticks makes a waiter of it again.
        """
        if buried and self.guards.buried_stay_out:
            self.tombstones = [t for t in self.tombstones if t.who != who]
            self.tombstones.append(Tombstone(who, buried))
        if not fence:
            for place in self.queue:
                if place.who == who:
                    self.queue.remove(place)
                    if not self.holders:
                        self._advance(who.client)
                    return Answer("done")
            if not self.guards.release_or_leave:
                return Answer("done")
        for holder in self.holders:
            meant = holder.who == who and fence in {0, holder.fence}
            if meant or not self.guards.release_compares:
                self.holders.remove(holder)
                self.floor = holder.fence
                self._advance(who.client, with_reply=True)
                break
        return Answer("done", push=self.push)

    def renew(self, who: Who, fence: int) -> Answer:
        """A grant that still holds lasts a whole ttl from now."""
        for at, holder in enumerate(self.holders):
            if holder[:2] == (who, fence) and holder.left:
                self.holders[at] = Holder(who, fence, self.ttl)
                return Answer("renewed", fence, self.ttl)
        if not self.guards.only_holders_renew:
            self.holders.append(Holder(who, fence, self.ttl))
            return Answer("renewed", fence, self.ttl)
        return Answer("refused", fence)

    def _enqueue(self, who: Who, ticket: int) -> int:
        for place in self.queue:
            if place.who == who:
                return place.ticket
        if not ticket:
            ticket = self.tickets = self.tickets + 1
        self.queue.append(Place(ticket, who))
        self.queue.sort()
        behind = self.queue[self.queue.index(Place(ticket, who)) + 1 :][:1]
        if self.ahead and self.guards.overtaken_are_told:
            for _, (client, task) in behind:
                if client != who.client:
                    self.pushes.append((client, Push("void", task)))
        return ticket

    def _advance(
        self, answered: int, *, asking: Who | None = None, with_reply: bool = False
    ) -> bool:
        """Hand the free lock on; True when it is the turn of who asks, who has it in the reply.

        The client that is answered is there, and where its release is, it needs no push besides.
        """
        while self.queue:
            _, head = self.queue.pop(-1 if self.from_the_end else 0)
            if head == asking:
                return True
            ours = head.client == answered
            if self._is_there(Place(0, head), answered) or not self.guards.silent_are_skipped:
                fence = self._grant(head, self.claim, unconfirmed=not self.renews)
                push = Push("granted", head.task, fence, self.claim)
                if ours and with_reply:
                    self.push = push
                else:
                    self.pushes.append((head.client, push))
                return False
        return True

    def would_look(self, who: Who, ticket: int) -> bool:
        """Whether it matters that it looks who is dead: it is a newcomer, and somebody is."""
        others = [place for place in self.queue if place.who != who]
        newcomer = not ticket and len(others) == len(self.queue)
        return newcomer and not all(self._is_there(place, who.client) for place in others)

    def _is_there(self, place: Place, answered: int) -> bool:
        return place.who.client == answered or self.listening[place.who.client]

    def break_(self, holder: Holder) -> None:
        """Somebody ends this grant, though its client is well."""
        self._end(holder)
        self.pushes.append((holder.who.client, Push("broken", holder.who.task, holder.fence)))
        self._advance(RESERVED)

    def _end(self, holder: Holder) -> None:
        self.holders.remove(holder)
        self.floor = holder.fence + (self.ahead if self.guards.fence_above_run else 0)

    def _reap(self, holder: Holder) -> None:
        """Its lease has ended, so its client is gone or stuck."""
        self._end(holder)
        stuck = holder.who.client
        # A lease that is not renewed may just end; but a claim is confirmed by whoever is there.
        says_nothing = not (holder.unconfirmed and self.guards.unconfirmed_are_stuck)
        if self.guards.stuck_are_purged and (self.renews or not says_nothing):
            self.queue = [place for place in self.queue if place.who.client != stuck]
        self.pushes.append((stuck, Push("lost", holder.who.task, holder.fence)))

    def _grant(self, who: Who, lease: int, *, unconfirmed: bool = False) -> int:
        """A new holder, under a new fence."""
        fence = 1
        if self.guards.fence_above_clock and not self.clock_is_back:
            fence = self.highest + 1  # the clock is past whatever it once gave
        if self.guards.fence_above_last:
            fence = max(fence, self.last + 1)
        if self.guards.fence_above_holder:
            fence = max(fence, self.floor + 1)
        self.fence_fell |= fence <= self.highest
        self.highest = max(self.highest, fence)
        self.last = fence
        self.holders.append(Holder(who, fence, lease, unconfirmed))
        return fence
