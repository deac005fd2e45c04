"""The supervisor of ``aiolock run``: a small process that starts the command, and ends it.

The guard is the process that holds the lock. It can be killed or stopped at any time, and then it
can end nothing. So the command is not its child, but the supervisor's: that has the end of the
lease, stops the command while the guard is stopped, and ends it when the guard is gone.

This file runs as a program of its own, without the package, so that it starts fast and has none of
the guard's connections: ``python -I -S supervisor.py CHANNEL GUARD GROUP GRACE COMMAND…``.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

LINUX: Final = sys.platform == "linux"
RECORD: Final = struct.Struct("=cd")
"""The format of a message on the channel: its kind, and a number."""
LEASE, SIGNAL, END = b"L", b"S", b"E"
"""From the guard: the end of the lease; a signal for the command; end the command."""
STARTED, FAILED, OVERDUE, ENDED = b"P", b"X", b"O", b"F"
"""To the guard: the command's pid; the errno that says why it cannot run; it is being ended because
the lease was not renewed; its exit code, less than 0 if a signal ended it."""
SHIELDED: Final = tuple(
    signal.Signals[f"SIG{name}"]
    for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "TSTP", "TTIN", "TTOU")
)
"""The supervisor ignores these: the guard gets them as well, and forwards those for the command."""
ENDING: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_TYPED: Final = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
"""Signals by which a terminal stops its programs, and they themselves."""
_ALWAYS_DEFAULT: Final = ("SIGPIPE", "SIGXFZ", "SIGXFSZ")
"""Python ignores these; a command shall not."""
_TICK: Final = 0.25
_TICK_OF_END: Final = _TICK if LINUX else 0.05
"""On Linux the last one is our child, whose end wakes us: we need not look at all of them often."""
_STOPPED_AFTER: Final = 1.5
"""Seconds without a message after which the guard counts as stopped, if its state is unknown."""
_EARLY: Final = 1.0
"""Without a guard, everything is killed so many seconds before the end of the lease, or a third of
what is left of it: on a busy machine we may be late."""
_STOP_ROUNDS: Final = 5
_SUBREAPER: Final = 36
_PDEATHSIG: Final = 1
"""Arguments of prctl(2)."""


class Process(NamedTuple):
    """A process of this machine."""

    pid: int
    parent: int
    group: int
    state: str
    """``T`` or ``t``: stopped; ``Z``: it has ended."""


def clock() -> float:
    """The clock of the lease: it goes on while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def prctl() -> Callable[[int, int], Any]:
    """The function by which a process of Linux sets what is its own."""
    import ctypes

    return ctypes.CDLL(None).prctl


def adopt_orphans() -> None:
    """Become the parent of all descendants that lose theirs; for Linux."""
    prctl()(_SUBREAPER, 1)


def stat(pid: int) -> Process | None:
    """A process; None if it is gone. For Linux."""
    try:
        # pathlib would take as long to import as all the rest.
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  # see above
            state, parent, group = file.read().rpartition(b")")[2].split()[:3]
    except OSError:
        return None
    return Process(pid, int(parent), int(group), state.decode())


def processes() -> list[Process]:
    """All processes of this machine."""
    if LINUX:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  # no pathlib
        return [found for number in numbers if (found := stat(number))]
    import subprocess

    with subprocess.Popen(
        ("/bin/ps", "-A", "-o", "pid=,ppid=,pgid=,stat="), stdout=subprocess.PIPE, text=True
    ) as ps:
        lines = [line.split() for line in ps.communicate()[0].splitlines()]
    table = [Process(int(pid), int(ppid), int(group), s[:1]) for pid, ppid, group, s in lines]
    return [each for each in table if each.pid != ps.pid]


def members(root: int, group: int) -> list[Process]:
    """The descendants of a process, and those of a process group (0: none), that still run."""
    table = [each for each in processes() if each.state != "Z"]
    found = {root} | {each.pid for each in table if group and each.group == group}
    before = 0
    while before != len(found):
        before = len(found)
        found |= {each.pid for each in table if each.parent in found}
    return [each for each in table if each.pid in found and each.pid != os.getpid()]


def send(number: int, pids: Iterable[int]) -> set[int]:
    """Send a signal to each; returns those to which we may send none."""
    refused = set[int]()
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            refused.add(pid)
    return refused


class Supervisor:
    """One command."""

    def __init__(self, channel: socket.socket, guard: int, group: int, grace: float) -> None:
        """``group``: the process group for the command, 0 for one of its own."""
        self._channel = channel
        self._guard = guard
        self._job = group
        self._grace = grace
        self._command = 0
        self._code: int | None = None
        self._deadline = 0.0
        """The end of the lease, by `clock`."""
        self._last_message_at = clock()
        self._received = b""
        self._gone = False
        """Whether the guard has ended."""
        self._still_until: float | None = None
        """The time to end the command if the guard is still stopped; None: it is not stopped."""
        self._told_to_end = False
        self._kill_at: float | None = None
        self._whole_tree = False
        """Whether everything is ended that the command has started, or only its process group."""
        self._refused = set[int]()
        """Processes to which we may send no signal."""
        self._closed = [fd for fd in (0, 1, 2) if _is_closed(fd)]
        for _ in self._closed:
            os.open(os.devnull, os.O_RDWR)  # so that nothing of ours takes their place
        self._prctl = prctl() if LINUX else None

    def run(self, argv: Sequence[str]) -> None:
        """Start the command, and return when it has ended."""
        if self._prctl:
            self._prctl(_SUBREAPER, 1)
        ignored = {number for number in SHIELDED if signal.getsignal(number) is signal.SIG_IGN}
        for number in SHIELDED:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SHIELDED)
        woken, wakes = socket.socketpair()
        woken.setblocking(False)  # noqa: FBT003  # takes no other
        wakes.setblocking(False)  # noqa: FBT003  # takes no other
        signal.signal(signal.SIGCHLD, _wake)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        if self._channel.recv(1, socket.MSG_PEEK) and self._start(argv, ignored):
            self._serve(woken)

    def _serve(self, woken: socket.socket) -> None:
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        poll.register(self._channel, select.POLLIN)
        while True:
            pause = _TICK
            if self._kill_at is not None:
                pause = min(_TICK_OF_END, max(0.0, self._kill_at - clock())) or _TICK_OF_END
            found = poll.poll(1000 * pause)
            for fd, _ in found:
                if fd == woken.fileno():
                    woken.recv(4096)
                elif not self._listen():
                    poll.unregister(self._channel)
            self._reap()
            self._look(clock())
            if self._code is not None and (self._kill_at is None or not self._left()):
                self._say(ENDED, self._code)
                return

    # The command

    def _start(self, argv: Sequence[str], ignored: Collection[int]) -> bool:
        error, its_error = os.pipe()
        us = os.getpid()
        self._command = os.fork()
        if not self._command:
            try:
                self._become(argv, ignored, us)
            except OSError as failure:
                os.write(its_error, str(failure.errno).encode())
            finally:
                os._exit(127)
        os.close(its_error)
        # Messages from now on are for a program that runs.
        errno = os.read(error, 100)
        os.close(error)
        if errno:
            os.waitpid(self._command, 0)
            self._say(FAILED, int(errno))
            return False
        self._say(STARTED, self._command)
        return True

    def _become(self, argv: Sequence[str], ignored: Collection[int], parent: int) -> None:
        """Become the command; called in the child."""
        signal.set_wakeup_fd(-1)
        for fd in self._closed:
            os.close(fd)
        os.setpgid(0, self._job)
        if self._prctl:
            self._prctl(_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                return
        for number in {*SHIELDED, signal.SIGCHLD} - set(ignored):
            signal.signal(number, signal.SIG_DFL)
        for name in _ALWAYS_DEFAULT:
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.execvp(argv[0], list(argv))  # noqa: S606  # the user's command

    def _reap(self) -> None:
        """Note the end of the command, and reap what it has left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid != self._command:
                continue
            if os.WIFSTOPPED(status):
                self._stopped(os.WSTOPSIG(status))
                continue
            self._code = os.waitstatus_to_exitcode(status)
            # A closed terminal signals the command as well, perhaps before the guard does.
            ends = self._told_to_end or -self._code in ENDING
            if ends and self._kill_at is None:
                self._kill_at = clock() + self._grace

    def _stopped(self, number: int) -> None:
        """The command has stopped: at a terminal, the job stops, so that the shell sees it."""
        if self._job and number in _TYPED and not self._guard_is_still(clock()):
            send(signal.SIGTSTP, (self._guard,))

    # The guard

    def _say(self, kind: bytes, value: float) -> None:
        try:
            self._channel.send(RECORD.pack(kind, value))
        except OSError:
            self._gone = True

    def _listen(self) -> bool:
        try:
            data = self._channel.recv(4096)
        except OSError:
            data = b""
        if not data:
            self._gone = True
            return False
        self._last_message_at = clock()
        self._received += data
        whole = len(self._received) // RECORD.size * RECORD.size
        for kind, value in RECORD.iter_unpack(self._received[:whole]):
            if kind == LEASE:
                self._deadline = value
            elif kind == SIGNAL:
                self._pass_on(int(value))
            else:
                self._end(clock() + self._grace)
        self._received = self._received[whole:]
        return True

    def _guard_is_still(self, now: float) -> bool:
        if LINUX:
            found = stat(self._guard)
            return found is not None and found.state in "Tt"
        return now - self._last_message_at > _STOPPED_AFTER

    def _look(self, now: float) -> None:
        """End the command if the lease is about to end, and stop it while the guard is stopped."""
        if self._kill_at is not None:
            if now >= self._kill_at:
                self._refused |= self._send(signal.SIGKILL)
            if self._whole_tree:
                return
        left = max(0.0, self._deadline - now)
        last = now + max(left - _EARLY, left * 2 / 3)
        if self._gone:
            # Without a guard, the command never outlives the lease.
            self._end(min(now + self._grace, last))
        elif self._guard_is_still(now):
            if self._still_until is None:
                self._still_until = last - min(self._grace, left / 3)
            if now >= self._still_until:
                self._say(OVERDUE, 0)
                self._end(last)
            else:
                self._stop()
        elif now >= self._deadline:
            self._say(OVERDUE, 0)
            self._end(now + self._grace)
        elif self._still_until is not None:
            self._still_until = None
            send(signal.SIGCONT, [each.pid for each in self._members()])

    # Signals

    def _end(self, kill_at: float) -> None:
        """End everything: now by SIGTERM, then by SIGKILL."""
        if self._whole_tree:
            return  # a second SIGTERM makes many programs end at once
        self._whole_tree = True
        self._kill_at = kill_at if self._kill_at is None else min(kill_at, self._kill_at)
        self._send(signal.SIGTERM)
        self._send(signal.SIGCONT)  # what is stopped gets the other only then

    def _stop(self) -> None:
        """Stop everything; what is started meanwhile as well."""
        stopped = set[int]()
        for _ in range(_STOP_ROUNDS):
            running = {each.pid for each in self._members() if each.state not in "Tt"} - stopped
            if not running:
                return
            send(signal.SIGSTOP, running)
            stopped |= running

    def _pass_on(self, number: int) -> None:
        if self._code is not None:
            return
        self._told_to_end |= number in ENDING
        # What is stopped gets the first only when it gets the second.
        for each in (number, signal.SIGCONT) if number in ENDING else (number,):
            if not self._job:
                self._send_to_group(each)
            elif number in (*ENDING, signal.SIGQUIT):
                group = os.getpgid(self._command)
                send(each, [one.pid for one in self._members() if one.group == group])
            else:
                send(each, (self._command,))

    def _send(self, number: int) -> set[int]:
        """Send it to each once; returns those to which we may send none."""
        done = self._command if self._send_to_group(number) else 0
        return send(number, [each.pid for each in self._left() if each.group != done])

    def _send_to_group(self, number: int) -> bool:
        """Send it to all of the command's process group at once, if it has one of its own."""
        if self._job or self._code is not None:
            return False
        try:
            os.killpg(self._command, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _members(self) -> list[Process]:
        return members(os.getpid(), 0 if LINUX or self._job else self._command)

    def _left(self) -> list[Process]:
        """The running processes that are to be ended."""
        group = self._job or self._command
        return [
            each
            for each in self._members()
            if each.pid not in self._refused and (self._whole_tree or each.group == group)
        ]


def _wake(number: int, frame: object) -> None:
    """A signal for which Python writes to the wake-up file."""


def _is_closed(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return True
    return False


def main(argv: Sequence[str]) -> None:
    """Run a command; the other arguments are listed at the top of this file."""
    channel, guard, group = map(int, argv[:3])
    with socket.socket(fileno=channel) as connection:
        connection.set_inheritable(False)
        Supervisor(connection, guard, group, float(argv[3])).run(argv[4:])


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # the guard waits for this
