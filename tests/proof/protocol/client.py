"""What a client does: its waiters, its watchdog, and the two connections below them."""

from __future__ import annotations

from tests.proof.protocol.model import (
    NEVER,
    UNANSWERED,
    WAITING,
    Answer,
    Client,
    Command,
    Phase,
    Push,
    Report,
    Run,
    Safeguards,
    Task,
    Terms,
)


class AtClient:
    """A client, taking one step."""

    def __init__(self, client: Client, guards: Safeguards, terms: Terms) -> None:
        self.guards = guards
        self.ttl, self.claim, self.late, self.renews, self.ahead = terms
        self.client = client
        self.tasks = list(client.tasks)
        self.pipe = list(client.pipe)
        self.inbox = list(client.inbox)
        self.line = list(client.line)
        self.unreleased = list(client.unreleased)
        self.alarm = client.alarm
        self.behind = dict(client.run.behind)
        self.present = client.run.present
        self.unsent = list(client.run.unsent)
        self.failed = list(client.run.failed)
        self.passed = dict(client.run.passed)
        self.overtaken = client.run.overtaken

    def after(self) -> Client:
        """What the client is now."""
        return self.client._replace(
            tasks=tuple(self.tasks),
            pipe=tuple(self.pipe),
            inbox=tuple(self.inbox),
            line=tuple(self.line),
            unreleased=tuple(self.unreleased),
            alarm=self.alarm,
            run=self._run() if self.ahead else self.client.run,
        )

    def _run(self) -> Run:
        reports = self.unsent or self.failed or any(c.what == "pass" for c in self.pipe)
        return Run(
            tuple(sorted(self.behind.items())),
            self.present if reports else -1,
            tuple(self.unsent),
            tuple(self.failed),
            tuple(sorted(self.passed.items())),
            self.overtaken and bool(self.passed),
        )

    # Asking

    def ask(self, at: int) -> None:
        """The task asks, and awaits the answer."""
        task = self.tasks[at]
        if task.tries or task.ticket:  # any other joins the tail, whatever is to be reported
            self._report_first()
        self.tasks[at] = task._replace(
            phase=Phase.ASKED, fence=0, left=0, unconfirmed=False, outdated=False
        )
        self.pipe.append(Command("ask", at, -1 if task.tries else task.ticket, awaited=True))

    def ask_after_giving_back(self, at: int) -> None:
        """The release of a grant that came too late is answered."""
        self.ask(at)

    def ask_again(self, at: int) -> None:
        """A waiter asks from the queue, or once more after the question that is under way."""
        task = self.tasks[at]
        if self._question(at) is not None:
            if task.phase in {Phase.ASKED, Phase.QUEUED} and self.guards.asks_once_more:
                self.tasks[at] = task._replace(outdated=True)
        elif task.phase is Phase.QUEUED:
            self.tasks[at] = task._replace(outdated=False)
            self._report_first()
            self.pipe.append(Command("ask", at, task.ticket))

    def all_ask_again(self) -> None:
        """Something was missed: whoever waits asks."""
        for at in range(len(self.tasks)):
            self.ask_again(at)

    def backstop(self) -> None:
        """The lease may have ended for which the first of us waits."""
        self.alarm = self.claim
        question = self._question(self.line[0])
        if question is None or question.awaited:
            self.ask_again(self.line[0])

    def _question(self, at: int) -> Command | None:
        """The question of this task that is under way."""
        for command in self.pipe:
            if command.what == "ask" and command.task == at and not command.dropped:
                return command
        return None

    # Being answered

    def read_reply(self) -> None:
        """The oldest reply."""
        command = self.pipe.pop(0)
        answer = command.answer
        assert answer is not None
        if answer.what == "unknown script":
            if self._is_resent(command):
                self.pipe.append(self._written(command._replace(answer=None)))
        elif command.what == "ask" and not command.dropped:
            self._asked(command, answer)
        elif command.what == "release" and answer.push is not None:
            self._granted(answer.push)
        elif command.what == "renew":
            self._renewed(command, answer)
        elif command.report is not None:
            self._reported(command.report, command, answer)

    def _asked(self, command: Command, answer: Answer) -> None:
        at, task = command.task, self.tasks[command.task]
        if task.phase is not (Phase.ASKED if command.awaited else Phase.QUEUED):
            if task.phase in WAITING:
                self.tasks[at] = task._replace(crossed=True)  # a push was quicker
            return
        if answer.displaced:
            self._displaced(at)
        if answer.what == "granted":
            since = command.age if self.guards.counted_from_the_question else 0
            self._called(at, answer.number, answer.ticks - since)
            unconfirmed = not self.renews and answer.ticks < self.ttl
            self.tasks[at] = self.tasks[at]._replace(unconfirmed=unconfirmed)
        elif answer.what == "busy":
            if command.awaited:
                self._leave(at, Task(Phase.DONE))
                if task.crossed and self.guards.refused_are_released:
                    self._release(at, 0)
        else:
            self._queued(at, answer)

    def _displaced(self, at: int) -> None:
        """This one had lost its place, so the others may have lost theirs."""
        if self.guards.forgets_when_displaced:
            self.behind.clear()
        if self.guards.asks_when_displaced:
            for other in range(len(self.tasks)):
                if other != at and self._question(other) is None:  # else it asked after this one
                    self.ask_again(other)

    def _queued(self, at: int, answer: Answer) -> None:
        if at not in self.line:
            self.line.append(at)
        if self.line[0] == at:
            self.alarm = NEVER  # only what is known of the first may put its question off
        self._ask_in(answer.ticks)
        outdated = self.tasks[at].outdated and self.guards.outdated_have_no_neighbour
        if not self.tasks[at].ticket and answer.before is not None and not outdated:
            self._stands_behind(at, *answer.before)
        task = self.tasks[at]._replace(age=0, ticket=answer.number, lag=answer.lag, failing=NEVER)
        pushed = task.fence != 0  # the push has overtaken this reply
        self.tasks[at] = task._replace(phase=Phase.CALLED if pushed else Phase.QUEUED)
        if task.outdated and not pushed:
            self.ask_again(at)

    def _called(self, at: int, fence: int, left: int) -> None:
        task = self.tasks[at]._replace(phase=Phase.CALLED, failing=NEVER)
        self.tasks[at] = task._replace(fence=fence, left=max(0, left))

    def _renewed(self, command: Command, answer: Answer) -> None:
        at, task = command.task, self.tasks[command.task]
        if task.phase is not Phase.BODY or task.fence != command.number:
            return
        if answer.what == "renewed":
            since = command.age if self.guards.counted_from_the_question else 0
            left = max(0, answer.ticks - since)
            self.tasks[at] = task._replace(left=left, unconfirmed=False)
        else:
            self._has_ended(at, refused=True)

    # Being pushed to

    def read_push(self) -> None:
        """The oldest push."""
        push = self.inbox.pop(0)
        if push.what == "granted":
            self._granted(push)
        elif push.what in {"lost", "broken"}:
            self._lost(push)
        elif push.what == "void":
            self._overtaken(push.task)
        else:
            if self.guards.forgets_when_subscribed_again:
                self.behind.clear()
            self._all_are_crossed()  # it is not said which of the connections is back
            if self.guards.asks_when_subscribed_again:
                self.all_ask_again()

    def _granted(self, push: Push) -> None:
        at, task = push.task, self.tasks[push.task]
        if task.phase not in WAITING:
            mine = task.phase is Phase.BODY and task.fence == push.fence
            if self.guards.passed_are_no_strangers:
                mine = mine or self.passed.get(at) == push.fence
            if not mine and self.guards.strangers_are_given_back:
                self._release(at, push.fence)
        elif push.fence > task.order_unknown or not self.guards.given_back_is_void:
            # As in Waiter.deadline: min(sent + (granted - answered), now) + lease, seen from now.
            since = task.age if task.lag == UNANSWERED else push.age + task.lag
            left = push.lease - (since if self.guards.counted_from_the_question else 0)
            if task.phase is Phase.QUEUED:
                self._called(at, push.fence, left)
            elif task.phase is Phase.ASKED:
                self.tasks[at] = task._replace(fence=push.fence, left=max(0, left))
            if task.phase in {Phase.QUEUED, Phase.ASKED} and not self.renews:
                self.tasks[at] = self.tasks[at]._replace(unconfirmed=True)

    def _lost(self, push: Push) -> None:
        at, fence = self._has_it_now(push.task, push.fence)
        task = self.tasks[at]
        if task.phase is Phase.BODY and task.fence == fence:
            self._has_ended(at, refused=push.what == "broken")
        elif task.phase in WAITING:
            self.tasks[at] = task._replace(order_unknown=max(task.order_unknown, fence))
        if push.what == "broken":
            self.ask_again(at)
            return
        self.behind.clear()
        if self.guards.asks_when_purged:
            self.all_ask_again()

    # Entering and leaving

    def run(self, at: int) -> None:
        """The task that was called runs: it enters, or it is too late."""
        task, question = self.tasks[at], self._question(at)
        if question is not None:
            self._abandon(at)
        if task.left and task.fence > task.order_unknown:
            crossed = (
                task.crossed or question is not None
            ) and self.guards.crossed_release_takes_all
            unconfirmed = task.unconfirmed
            body = Task(Phase.BODY, fence=task.fence, left=task.left, crossed=crossed)
            self._leave(at, body._replace(unconfirmed=unconfirmed))
        elif not self.guards.late_are_given_back:
            self.tasks[at] = Task(Phase.LATE)
        else:
            order_unknown = (
                max(task.order_unknown, task.fence)
                if self.guards.given_back_is_void
                else task.order_unknown
            )
            self.tasks[at] = task._replace(phase=Phase.BACK, left=0, order_unknown=order_unknown)
            self._unlink(at)
            self.behind.pop(at, None)
            self._release(at, task.fence, awaited=True)
            if not self.guards.asks_after_giving_back:
                self.ask(at)

    def renew(self, at: int) -> None:
        """The watchdog renews, some time before the lease ends."""
        self._report_first()
        self.pipe.append(Command("renew", at, self.tasks[at].fence))

    def end(self, at: int) -> None:
        """The body has ended, or its time is over: the lock is handed on, or released."""
        if not self.tasks[at].left or not self._hands_on(at):
            self._has_ended(at)

    def _has_ended(self, at: int, *, refused: bool = False) -> None:
        """The body has ended; or its lease is lost, which ends it."""
        task = self.tasks[at]
        self.tasks[at] = Task(Phase.DONE)
        self.behind.pop(at, None)
        if task.crossed or not refused:
            self._release(at, 0 if task.crossed else task.fence, awaited=True)

    def give_up(self, at: int) -> None:
        """The waiting ends, whatever has come of it: a cancellation, a timeout, an error."""
        self._report_first()
        place = len(self.pipe)
        if not self.guards.releases_behind_questions:
            asked = (i for i, c in enumerate(self.pipe) if c.task == at and c.answer is None)
            place = next(asked, place)
        self._abandon(at)
        self._leave(at, Task(Phase.DONE))
        self._release(at, 0, place=place)

    def try_again(self) -> None:
        """A second after a release has failed, whether or not there is a connection."""
        for at, fence in self.unreleased:
            self._release(at, fence if self.guards.tried_again_as_it_was else 0)
        self.unreleased = []

    def _release(
        self, at: int, fence: int, *, awaited: bool = False, place: int | None = None
    ) -> None:
        self._report_first()
        command = self._written(Command("release", at, fence, awaited=awaited))
        self.pipe.insert(len(self.pipe) if place is None else place, command)

    def _written(self, command: Command) -> Command:
        """A command as it is sent now: some releases carry a tombstone."""
        one_grant = command.number and self.guards.given_back_are_not_buried
        if command.what != "release" or one_grant or not self.guards.given_up_are_buried:
            return command
        return command._replace(lasts=self.late if self.client.broken else 0)

    def _abandon(self, at: int) -> None:
        """Nobody cares any more for the answers to what this task has sent."""
        for i, command in enumerate(self.pipe):
            if command.task == at and (command.what == "ask" or command.awaited):
                self.pipe[i] = command._replace(age=0, awaited=False, dropped=True)

    def _leave(self, at: int, now: Task) -> None:
        """It waits no more. Should its client hear nothing of the next grant, that is a claim."""
        before = self._unlink(at)
        if now.phase is not Phase.BODY:
            after = self.behind.pop(at, None)
            if before is not None and after is not None and self.tasks[at].phase is Phase.QUEUED:
                self.behind[before] = after
        self.tasks[at] = now
        if at in self.line:
            self.line.remove(at)
            self._ask_in(self.claim)
        if not self.line:
            self.alarm = NEVER

    def _ask_in(self, ticks: int) -> None:
        """Let the first in line ask then, if it would not before."""
        self.alarm = ticks if self.alarm == NEVER else min(self.alarm, ticks)

    # Handing on

    def _stands_behind(self, at: int, before: int, fence: int) -> None:
        """A newcomer was told who stands directly before it: of whom that still is true."""
        task = self.tasks[before]
        waits = task.phase in {Phase.QUEUED, Phase.CALLED}
        holds = task.phase is Phase.BODY and fence in {0, task.fence}
        if (waits or holds) and not self.tasks[at].crossed and not self.overtaken:
            self.behind[before] = at

    def _unlink(self, at: int) -> int | None:
        """Forget who stands directly before this one; who that was."""
        for before, after in self.behind.items():
            if after == at:
                del self.behind[before]
                return before
        return None

    def _overtaken(self, at: int) -> None:
        """Somebody came to stand directly before this one."""
        here = [at]
        self._unlink(at)
        if self.guards.forgets_when_overtaken:
            # That one may have been handed the lock: then before those who stand behind it.
            here = list(range(len(self.tasks)))
            self.behind.clear()
            self.overtaken = bool(self.passed)
        for each in here:
            if self.tasks[each].phase is Phase.ASKED:
                self.ask_again(each)  # the answer may be older

    def _hands_on(self, at: int) -> bool:
        """To who stands directly behind, as the server would: under the lease that it knows of."""
        task, after = self.tasks[at], self.behind.get(at)
        if not self.guards.only_to_neighbours:
            queued = (each for each in self.line if self.tasks[each].phase is Phase.QUEUED)
            after = next(queued, None)
        if not self.ahead or after is None or not self._may_pass(task, after):
            return False
        self.behind.pop(at, None)
        self._unlink(after)
        self.tasks[at] = Task(Phase.DONE)
        fence = task.fence + 1
        left = min(task.left, self.claim) if self.guards.deadline_is_inherited else self.claim
        if self.unsent and self.unsent[-1].fence == task.fence:
            last = self.unsent.pop()
            self.unsent.append(last._replace(via=(*last.via, after), fence=fence))
        else:
            self.unsent.append(Report(at, task.fence, (after,), fence))
        self.passed[at] = task.fence
        self.present = after
        self._called(after, fence, left)
        return True

    def _may_pass(self, task: Task, after: int) -> bool:
        if self.tasks[after].phase is not Phase.QUEUED or self._question(after) is not None:
            return False
        guards = self.guards
        crossed = guards.crossed_are_not_passed and task.crossed
        failed = guards.failed_reports_end_runs and self.failed
        far = guards.runs_are_bounded and len(self.passed) >= self.ahead
        return not (crossed or failed or far)

    def report(self) -> None:
        """What was handed on is reported, in order."""
        for report in (*self.failed, *self.unsent):
            again = report in self.failed
            # A claim is over by the time at which a report has failed.
            age = self.claim if again and self.guards.confirmed_from_the_first else 0
            command = Command("pass", report.via[-1], report.fence, age, report=report)
            self.pipe.append(command._replace(again=again))
        self.failed, self.unsent = [], []

    def _report_first(self) -> None:
        if self.guards.reports_come_first:
            self.report()

    def _reported(self, report: Report, command: Command, answer: Answer) -> None:
        for at in (report.source, *report.via[:-1]):
            self.passed.pop(at, None)
        present = self.tasks[self.present]
        if answer.what != "refused":
            since = command.age if self.guards.counted_from_the_question else 0
            if present.phase is Phase.BODY:
                left = max(present.left, self.claim - since)
                self.tasks[self.present] = present._replace(left=left)
            if self.guards.outrun_reports_are_followed:
                self._follow(report)
        elif not command.again:
            self._refused(report)

    def _follow(self, report: Report) -> None:
        """What was to come behind this report was quicker: it is said once more."""
        at, fence = report.via[-1], report.fence
        has_it = self.tasks[at].phase in {Phase.CALLED, Phase.BODY}
        if (has_it and self.tasks[at].fence == fence) or self.passed.get(at) == fence:
            return
        said = any(command.what == "release" and command.task == at for command in self.pipe)
        if not said and all(task != at for task, _ in self.unreleased):
            self._release(at, fence)

    def _refused(self, report: Report) -> None:
        """The grant that was handed on had ended: nobody of the run has anything."""
        present = self.tasks[self.present]
        if present.phase is Phase.BODY:
            self._has_ended(self.present, refused=True)
        elif present.phase in {Phase.CALLED, Phase.BACK}:
            order_unknown = max(present.order_unknown, present.fence)
            self.tasks[self.present] = present._replace(order_unknown=order_unknown)
        for at in report.via if self.guards.between_are_released else ():
            waits = at == self.present and present.phase is Phase.CALLED
            if self.guards.only_ended_are_released:
                waits = self.tasks[at].phase is not Phase.DONE
            if not waits:
                retried = self.guards.between_are_tried_again
                self.pipe.append(self._written(Command("release", at, dropped=not retried)))

    def _has_it_now(self, at: int, fence: int) -> tuple[int, int]:
        """What was said of this grant is to be said of: the one it has become since."""
        if self.passed.get(at) != fence or not self.guards.lost_are_all_of_a_run:
            return at, fence
        return self.present, self.tasks[self.present].fence

    # Connections

    def link(self) -> None:
        """A new connection: what was not answered is sent again."""
        self.client = self.client._replace(linked=True)
        if self.guards.forgets_when_subscribed_again:
            self.behind.clear()
        self._all_are_crossed()
        self.pipe = list(filter(self._is_resent, self.pipe))
        if self.guards.buried_when_resent:
            self.pipe = list(map(self._written, self.pipe))
        if not self.guards.resends_in_order:
            self.pipe.reverse()
        if self.guards.asks_when_linked_again:
            self.all_ask_again()

    def _all_are_crossed(self) -> None:
        """What is under way may have been sent before, and come once more."""
        if self.late and self.guards.resent_are_crossed:
            asked = {each.task for each in self.pipe if each.what == "ask" and not each.dropped}
            for at in asked:
                if self.tasks[at].phase in WAITING:
                    self.tasks[at] = self.tasks[at]._replace(crossed=True)

    def _is_resent(self, command: Command) -> bool:
        abandoned = command.what == "ask" and command.dropped
        return not (abandoned and self.guards.abandoned_are_not_resent)

    def subscribe(self) -> None:
        """A new subscription; what was on the old one is lost."""
        self.client = self.client._replace(hears=True, counted=True)
        self.inbox = [Push("subscribed")]

    def despair(self) -> None:
        """There is no connection for so long that the oldest command fails: nobody knows."""
        command = self.pipe.pop(0)
        at, task = command.task, self.tasks[command.task]
        if command.dropped or command.what == "renew":
            return
        if command.report is not None:
            if self.guards.failed_reports_are_repeated:
                self.failed.append(command.report)
            return
        if command.what == "ask":
            if task.phase is Phase.QUEUED and task.failing:
                left = self.ttl if task.failing == NEVER else task.failing
                self.tasks[at] = task._replace(failing=left)
                self.ask_again(at)
            elif task.phase in {Phase.ASKED, Phase.QUEUED}:
                self.give_up(at)
        elif command.awaited and task.phase is Phase.BACK:
            self.give_up(at)
        elif self.guards.failed_are_tried_again:
            self.unreleased.append((at, command.number))
