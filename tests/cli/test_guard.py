"""``aiolock run`` guards its command: that never runs on without its lock, whatever happens."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import socket
import sys
from collections.abc import (
    AsyncGenerator,
    Callable,
    Generator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import pytest

import aiolock
from aiolock.cli import supervisor
from tests.support.commands import (
    WITHIN,
    Cli,
    at_a_terminal,
    command_line,
    end_of,
    get_all_signals,
    gone,
    line_of,
    runs,
    sh,
    shown,
    state,
    waited_for,
)
from tests.support.failures import until
from tests.support.servers import RedisServer

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.one_loop,
]

STUBBORN = "trap '' TERM HUP INT; echo $$; exec sleep 600"
"""Names itself, and ends only by SIGKILL."""
TREE = f"""
sh -c "{STUBBORN.replace("$", chr(92) + "$")}" &
setsid sh -c "{STUBBORN.replace("$", chr(92) + "$")}" &
wait"""
"""Two of those below a shell; one with a session of its own."""
TTL = "6"
"""Seconds of a lease that ends in a test. On a busy machine a shorter one is renewed late, and may
leave too little time to end a command before the next holder enters."""


def parent_of(pid: int) -> int:
    """The pid of its parent."""
    found = supervisor.stat(pid)
    assert found is not None
    return found.parent


def stopped(pids: Sequence[int]) -> Callable[[], bool]:
    """Whether all of them are stopped."""
    return lambda: all(state(pid) == "T" for pid in pids)


def going(pids: Sequence[int]) -> Callable[[], bool]:
    """Whether none of them is stopped."""
    return lambda: all(state(pid) not in "TtZ" for pid in pids)


async def numbers(process: asyncio.subprocess.Process, count: int) -> list[int]:
    """So many numbers, a line for each."""
    return [int(await line_of(process)) for _ in range(count)]


@contextmanager
def continued(pid: int) -> Generator[None]:
    """A process that is stopped meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def entered_alone(client: aiolock.LockClient, pids: Sequence[int]) -> None:
    """Enter the lock, when nothing of the command runs any more."""
    async with client.lock("job", timeout=WITHIN):
        assert [pid for pid in pids if runs(pid)] == []


# --- The guard is stopped


async def test_stopped_guard_has_its_command_stopped_until_it_goes_on(cli: Cli) -> None:
    """All of the command, as long as the lease lasts; then it goes on to its end."""
    async with cli.started("run", "job", *sh(f"{TREE}; exit 5")) as it:
        pids = await numbers(it, 2)
        with continued(it.pid):
            await until(stopped(pids), within=WITHIN)
        await until(going(pids), within=WITHIN)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert (await end_of(it))[0] == 5


async def test_guard_stopped_beyond_its_lease_leaves_nothing_beside_the_next_holder(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """Also of a command that ignores SIGTERM; and the guard says why, when it goes on."""
    async with cli.started("run", "--ttl", TTL, "job", *sh(TREE)) as it:
        pids = await numbers(it, 2)
        with continued(it.pid):
            await entered_alone(client, pids)
        code, _, errors = await end_of(it)
        assert code == 76
        assert "was lost" in errors


async def test_guard_stopped_beyond_its_lease_lets_its_command_handle_sigterm(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """It gets SIGTERM some time before the lease ends, and goes on meanwhile."""
    script = "trap 'echo tidied up; exit 0' TERM; echo in; while :; do sleep 0.05; done"
    async with cli.started("run", "--ttl", TTL, "job", *sh(script)) as it:
        await line_of(it)
        with continued(it.pid):
            assert await line_of(it) == "tidied up"
        assert (await end_of(it))[0] == 76
        async with client.lock("job", timeout=WITHIN):
            pass


@asynccontextmanager
async def shell() -> AsyncGenerator[int]:
    """An interactive shell at a terminal of its own; our end of that."""
    pid, terminal = pty.fork()
    if not pid:
        get_all_signals()
        os.environ["PS1"] = "ready:"
        os.execvp("bash", ["bash", "--norc", "--noediting", "-i"])
    try:
        await shown(terminal, "ready:")
        yield terminal
    finally:
        os.close(terminal)  # it ends by that
        await asyncio.to_thread(os.waitpid, pid, 0)


INPUTS = {"terminal": "{}", "pipe": "echo data | {}", "file": "{} </etc/hostname"}


async def at_the_shell(
    cli: Cli, terminal: int, where: Path, line: str, *options: str, script: str = ""
) -> list[int]:
    """Run the command at the shell's prompt; returns the pids that it names in a file."""
    program = where / "command"
    program.write_text(script or f"exec >{where}/pids\n{TREE}")
    command = " ".join(("run", *options, "job", "--", "sh", str(program)))
    settings = " ".join(f"{key}={value}" for key, value in cli.env.items())
    command = f"env {settings} {sys.executable} -P -W error -m aiolock {command}"
    os.write(terminal, (line.format(command) + "\n").encode())
    pids = where / "pids"
    await until(lambda: pids.exists() and pids.read_text().count("\n") == 2, within=WITHIN)
    return [int(line) for line in pids.read_text().split()]


@pytest.mark.parametrize("line", INPUTS.values(), ids=INPUTS.keys())
async def test_ctrl_z_in_a_shell_stops_the_command_and_fg_continues_it(
    cli: Cli, tmp_path: Path, line: str
) -> None:
    """Wherever its input comes from; and the shell has the terminal meanwhile."""
    async with shell() as terminal:
        pids = await at_the_shell(cli, terminal, tmp_path, line)
        os.write(terminal, b"\x1a")
        await shown(terminal, "Stopped")
        await until(stopped(pids), within=WITHIN)
        for resume in (b"fg\n", b"bg\n"):
            os.write(terminal, resume)
            await until(going(pids), within=WITHIN)
            if resume == b"fg\n":
                os.write(terminal, b"\x1a")
                await shown(terminal, "Stopped")
                await until(stopped(pids), within=WITHIN)
        os.write(terminal, b"kill %1\n")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("line", INPUTS.values(), ids=INPUTS.keys())
async def test_ctrl_z_beyond_the_lease_leaves_nothing_beside_the_next_holder(
    cli: Cli, client: aiolock.LockClient, tmp_path: Path, line: str
) -> None:
    """The guard cannot renew the lease; it says so when it is in the foreground again."""
    async with shell() as terminal:
        pids = await at_the_shell(cli, terminal, tmp_path, line, "--ttl", TTL)
        os.write(terminal, b"\x1a")
        await shown(terminal, "Stopped")
        await entered_alone(client, pids)
        os.write(terminal, b"fg\n")
        await shown(terminal, "was lost")


async def test_command_that_stops_itself_gives_the_terminal_back(cli: Cli, tmp_path: Path) -> None:
    """As `~^Z` of ssh does, which no terminal has sent."""
    script = f"echo $$ $$ | tr ' ' '\\n' >{tmp_path}/pids; kill -TSTP $$; echo went on; exit 7"
    async with shell() as terminal:
        await at_the_shell(cli, terminal, tmp_path, "{}", script=script)
        await shown(terminal, "Stopped")
        os.write(terminal, b"fg\n")
        await shown(terminal, "went on")
        os.write(terminal, b"echo code $?.\n")
        await shown(terminal, "code 7.")


async def test_ctrl_c_reaches_all_of_a_pipeline_once(cli: Cli, tmp_path: Path) -> None:
    """The command, which counts, and what reads from it."""
    script = f"""
trap 'n=x$n' INT
echo $$ $$ | tr ' ' '\\n' >{tmp_path}/pids
while [ -z $n ]; do sleep 0.05; done; sleep 0.5; echo got $n. >&2; exit 3
"""
    line = "{} | (trap 'echo reader' INT; cat; cat); echo code ${{PIPESTATUS[0]}}."
    async with shell() as terminal:
        await at_the_shell(cli, terminal, tmp_path, line, script=script)
        os.write(terminal, b"\x03")
        seen = await shown(terminal, "code 3.")
        assert "got x." in seen


async def test_command_reads_from_the_terminal_though_its_input_is_a_pipe(
    cli: Cli, tmp_path: Path
) -> None:
    """As whatever asks for a password does."""
    script = f"""
echo $$ $$ | tr ' ' '\\n' >{tmp_path}/pids
read answer </dev/tty; read data; echo $answer and $data.; exit 0
"""
    async with shell() as terminal:
        await at_the_shell(cli, terminal, tmp_path, INPUTS["pipe"], script=script)
        os.write(terminal, b"yes\n")
        await shown(terminal, "yes and data.")


async def test_closed_terminal_ends_the_command_but_not_other_sessions(
    cli: Cli, client: aiolock.LockClient, tmp_path: Path
) -> None:
    """Also what ignores that; but not what has left the session."""
    async with shell() as terminal:
        pids = await at_the_shell(cli, terminal, tmp_path, "{}", "--grace", "0.5")
        inside, outside = sorted(pids, key=lambda pid: os.getsid(pid) == pid)
    await entered_alone(client, [inside])
    os.kill(outside, signal.SIGKILL)


# --- The guard is ended


@pytest.mark.parametrize("grace", ["0.2", "60"])
async def test_killed_guard_has_its_command_ended_before_the_next_holder(
    cli: Cli, client: aiolock.LockClient, grace: str
) -> None:
    """With what its shell has started; at the end of the lease at the latest."""
    async with cli.started("run", "--ttl", TTL, "--grace", grace, "job", *sh(TREE)) as it:
        pids = await numbers(it, 2)
        it.kill()
        await entered_alone(client, pids)


async def test_killed_guard_leaves_neither_command_nor_supervisor(cli: Cli) -> None:
    """Nothing is left."""
    async with cli.started("run", "--ttl", "600", "job", *sh("echo $$; exec sleep 600")) as it:
        (pid,) = await numbers(it, 1)
        parent = parent_of(pid)
        assert parent_of(parent) == it.pid
        it.kill()
        await gone(pid)
        await gone(parent)


async def test_terminated_guard_keeps_the_lock_until_its_command_has_ended(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """The shell ends by SIGTERM; what it has started gets SIGKILL."""
    script = f'sh -c "{STUBBORN.replace("$", chr(92) + "$")}" & wait'
    async with cli.started("run", "--grace", "0.5", "job", *sh(script)) as it:
        pids = await numbers(it, 1)
        it.terminate()
        await entered_alone(client, pids)
        assert (await end_of(it))[0] == 128 + signal.SIGTERM


async def test_terminated_guard_ends_a_command_that_is_stopped(cli: Cli) -> None:
    """It gets the signal when it is continued, and is continued."""
    script = "trap 'exit 7' TERM; echo $$; while :; do sleep 0.05; done"
    async with cli.started("run", "job", *sh(script)) as it:
        (pid,) = await numbers(it, 1)
        os.kill(pid, signal.SIGSTOP)
        await until(stopped([pid]), within=WITHIN)
        it.terminate()
        assert (await end_of(it))[0] == 7


async def test_terminated_guard_holds_the_lock_while_its_command_goes_on(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """For longer than the time from SIGTERM to SIGKILL; the lock is held meanwhile."""
    script = "trap 'n=x; echo got it' TERM; echo in; while [ -z $n ]; do sleep 0.05; done; sleep 1"
    async with cli.started("run", "--grace", "0.1", "job", *sh(f"{script}; echo out")) as it:
        assert await line_of(it) == "in"
        it.terminate()
        assert await line_of(it) == "got it"
        assert await client.lock("job").locked()
        assert (await end_of(it))[:2] == (0, "out\n")


async def test_command_killed_by_a_signal_keeps_the_lock_until_its_group_ends(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """As when a terminal is closed, and the guard is told later than the command."""
    script = f'sh -c "{STUBBORN.replace("$", chr(92) + "$")}" & read _; kill -TERM $$'
    async with cli.started(
        "run", "--grace", "0.5", "job", *sh(script), stdin=asyncio.subprocess.PIPE
    ) as it:
        pids = await numbers(it, 1)
        assert it.stdin is not None
        it.stdin.write(b"now\n")
        await entered_alone(client, pids)
        assert (await end_of(it))[0] == 128 + signal.SIGTERM


async def test_ended_command_leaves_its_daemon_running_and_no_supervisor(cli: Cli) -> None:
    """What a command has left in the background is no part of it."""
    script = "(sleep 60 >/dev/null 2>&1 & echo $!); echo $PPID"
    async with cli.started("run", "job", *sh(script)) as it:
        daemon, parent = await numbers(it, 2)
        assert (await end_of(it))[0] == 0
    await gone(parent)
    assert runs(daemon)
    os.kill(daemon, signal.SIGKILL)


# --- The supervisor is killed or stopped


async def test_killed_supervisor_has_its_command_ended_by_the_guard(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """The guard ends all of it, before it gives the lock back."""
    async with cli.started("run", "--grace", "0.3", "job", *sh("echo $PPID;" + TREE)) as it:
        parent, *pids = await numbers(it, 3)
        os.kill(parent, signal.SIGKILL)
        await entered_alone(client, pids)
        code, _, errors = await end_of(it)
        assert code == 128 + signal.SIGKILL
        assert "the supervisor of the command was killed" in errors


async def test_killed_supervisor_of_a_stopped_guard_ends_its_command(cli: Cli) -> None:
    """The command itself, by the kernel: nobody is left who could end the others."""
    script = "trap '' TERM; echo $PPID; echo $$; exec sleep 600"
    async with cli.started("run", "job", *sh(script)) as it:
        parent, pid = await numbers(it, 2)
        with continued(it.pid):
            await until(stopped([pid]), within=WITHIN)
            os.kill(parent, signal.SIGKILL)
            await gone(pid)


async def test_supervisor_ignores_signals_not_sent_by_the_guard(cli: Cli) -> None:
    """It gets all signals of a service or a container that is stopped, and leaves them alone."""
    script = "trap 'exit 7' TERM; echo $PPID; while :; do sleep 0.05; done"
    async with cli.started("run", "job", *sh(script)) as it:
        (parent,) = await numbers(it, 1)
        for number in supervisor.SHIELDED:
            os.kill(parent, number)
        it.terminate()
        assert (await end_of(it))[0] == 7


async def test_supervisor_without_a_guard_starts_nothing(tmp_path: Path) -> None:
    """The guard was killed before it could say for how long the lease lasts."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        args = (str(theirs.fileno()), str(os.getpid()), "0", "5", "touch", str(tmp_path / "ran"))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", supervisor.__file__, *args), pass_fds=[theirs.fileno()]
        )
    assert await asyncio.wait_for(process.wait(), WITHIN) == 0
    assert not (tmp_path / "ran").exists()


async def test_stopped_supervisor_still_ends_its_command_after_a_loss(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """So that it is there when it is needed."""
    async with cli.started("run", "--grace", "0.3", "job", *sh("echo $PPID;" + TREE)) as it:
        parent, *pids = await numbers(it, 3)
        os.kill(parent, signal.SIGSTOP)
        assert await client.break_("job")
        assert (await end_of(it))[0] == 76
        for pid in pids:
            await gone(pid)


# --- The lock is lost


async def test_lost_lock_ends_a_command_that_is_stopped(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """By SIGTERM, which it gets when it is continued; what ignores that by SIGKILL."""
    polite = "trap 'echo ended; exit 0' TERM; echo $$; echo $$; while :; do sleep 0.05; done"
    for script, says in ((polite, "ended\n"), (TREE, "")):
        async with cli.started("run", "--grace", "1", "job", *sh(script)) as it:
            pids = await numbers(it, 2)
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            assert await client.break_("job")
            assert (await end_of(it))[:2] == (76, says)
            for pid in pids:
                await gone(pid)


async def test_lost_lock_sends_sigterm_once(cli: Cli, client: aiolock.LockClient) -> None:
    """A second one would tell many programs to end at once."""
    script = "trap 'n=x$n' TERM; echo in; while [ -z $n ]; do sleep 0.05; done; sleep 0.3; echo $n"
    async with cli.started("run", "job", *sh(script)) as it:
        await line_of(it)
        assert await client.break_("job")
        assert (await end_of(it))[:2] == (76, "x\n")


OVERDUE = """
import asyncio, os, sys, time
from aiolock.cli.child import Child

async def run():
    end = time.monotonic() + 600
    command = ("sh", "-c", sys.argv[2])
    child = Child(command, os.environ, grace=60, remaining=lambda: end - time.monotonic())
    running = asyncio.create_task(child.run())
    while not os.path.exists(sys.argv[3]):
        await asyncio.sleep(0.01)
    end = time.monotonic() + 1
    await asyncio.sleep(0.5)  # the supervisor is told meanwhile
    if sys.argv[1] == "stuck":
        time.sleep(2)
    while not child.overdue:
        await asyncio.sleep(0.01)
    if sys.argv[1] == "lost":
        running.cancel()
    await asyncio.wait([running])

asyncio.run(run())
"""
"""Runs a command under a lease that nobody renews once there is a file."""


@pytest.mark.parametrize("guard", ["stuck", "late", "lost"])
async def test_overdue_lease_sends_sigterm_once(cli: Cli, tmp_path: Path, guard: str) -> None:
    """Though the guard itself is not stopped; and also if it notices the loss after that."""
    file = str(tmp_path / "begun")
    script = f"trap 'n=x$n' TERM; touch {file}; while [ -z $n ]; do sleep 0.05; done"
    script += "; sleep 0.5; echo $n"
    args = ("-P", "-W", "error", "-c", OVERDUE, guard, script, file)
    async with cli.started(program=args) as it:
        assert (await end_of(it))[:2] == (0, "x\n")


# --- The tests themselves


async def test_command_line_of_a_test_that_fails_leaves_no_process(
    redis_server: RedisServer, prefix: str
) -> None:
    """Not even one that has a session of its own, and ignores all that it can."""
    with command_line(redis_server.url, prefix) as cli:
        async with cli.started("run", "job", *sh("echo $PPID;" + TREE)) as it:
            supervisor_of_it, *pids = await numbers(it, 3)
            it.kill()
            os.kill(supervisor_of_it, signal.SIGKILL)
        assert all(map(runs, pids))
    for pid in pids:
        await gone(pid)


# --- What the command gets


PROGRAM = """
import asyncio, os, sys
from aiolock.cli.child import Child

async def run():
    child = Child(("sleep", "600"), os.environ, grace=1, remaining=lambda: 60.0)
    running = asyncio.create_task(child.run())
    await asyncio.sleep(0)
    child._pass_on(int(sys.argv[1]))
    return await running

sys.exit(asyncio.run(run()))
"""
"""Runs a command, which gets a signal before it has begun."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signal_before_the_command_begins_is_passed_on(
    cli: Cli, number: signal.Signals
) -> None:
    """As soon as the command runs, also at a terminal."""
    args = ("-P", "-W", "error", "-c", PROGRAM, str(int(number)))
    async with cli.started(program=args, before=os.setsid) as it:
        assert (await end_of(it))[0] == 128 + number
    async with at_a_terminal(cli, program=args) as (it, _):
        assert (await end_of(it))[0] == 128 + number


async def test_closed_streams_stay_closed(cli: Cli) -> None:
    """The command has none of the files of ours in their place."""
    script = "ls -l /proc/self/fd >&2"
    for fd in (0, 1):
        async with cli.started("run", "job", *sh(script), before=partial(os.close, fd)) as it:
            code, _, errors = await end_of(it)
        assert code == 0
        assert "socket:" not in errors


async def test_command_inherits_only_ignored_signals(cli: Cli) -> None:
    """It ignores what this process was started with as ignored, and nothing else."""
    # Not by a shell: some unblock all signals when they start.
    command = ("run", "job", "--", "grep", "-E", "Sig(Blk|Ign)", "/proc/self/status")
    for names in ((), (signal.SIGHUP, signal.SIGUSR1, signal.SIGTSTP)):
        ignore = "".join(f"trap '' {number.name[3:]}; " for number in names)
        by = ("sh", "-c", f'{ignore}exec "$@"', "sh")
        async with cli.started(*command, by=by) as it:
            code, output, errors = await end_of(it)
        assert (code, errors) == (0, "")
        # The C library keeps 32 and 33 for itself; whoever runs the tests may have ignored them.
        blocked, ignored = (int(line.split()[1], 16) & ~(3 << 31) for line in output.splitlines())
        assert blocked == 0
        assert ignored == sum(1 << (number - 1) for number in names)


async def test_waiting_guard_that_is_stopped_begins_its_command_when_continued(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """Its command has not begun, and begins only when it goes on."""
    async with cli.started("run", "job", *sh("echo ran")) as it:
        async with client.lock("job"):
            await waited_for(client, "job")
            os.kill(it.pid, signal.SIGSTOP)
        async with client.lock("job", timeout=WITHIN):
            pass
        os.kill(it.pid, signal.SIGCONT)
        assert (await end_of(it))[:2] == (0, "ran\n")
