"""The commands for operators, run as they run them: ls, show, break, ask, run."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

import aiolock
from aiolock.cli import break_
from aiolock.cli.main import main
from aiolock.cli.store import shown as shown_url
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.commands import (
    WITHIN,
    Cli,
    at_a_terminal,
    end_of,
    gone,
    line_of,
    sh,
    shown,
    state,
    waited_for,
)
from tests.support.servers import RedisServer, hold_port
from tests.support.worlds import asking

# --- ls, show


def test_help_lists_each_command_without_program_code(capsys: pytest.CaptureFixture[str]) -> None:
    """It says in one sentence what the command line is for, without code of a program."""
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert "async with" not in printed
    assert {command in printed for command in ("run", "ls", "break", "check")} == {True}


async def test_ls_prints_a_line_for_each_lock_with_holder_and_waiters(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """A line for each, with its kind, its holder and how many wait."""
    async with client.lock("order:42"), client.semaphore("api", 2), client.lock("two\nlines"):
        waiting = asking(client.lock("order:42"))
        await waited_for(client, "order:42")
        code, output, errors = await cli("ls")
        head, *lines = output.splitlines()
        assert (code, errors) == (0, "")
        assert re.split(" {2,}", head) == [
            *("KIND", "NAME", "HELD BY", "WHERE", "FOR", "LEASE", "WAITING", "LONGEST")
        ]
        assert [line.split()[:2] for line in lines] == [
            ["lock", "order:42"],
            ["lock", "two\\nlines"],
            ["semaphore", "api"],
        ]
        assert f":{os.getpid()} " in lines[0]
        assert lines[0].split()[-3] == "1"
        _, by_queue, _ = await cli.here("ls", "--sort", "waiting", "--kind", "lock", "*:*")
        assert [line.split()[1] for line in by_queue.splitlines()[1:]] == ["order:42"]
        _, data, _ = await cli.here("ls", "--json")
        assert [(each["kind"], each["name"]) for each in json.loads(data)] == [
            ("lock", "order:42"),
            ("lock", "two\nlines"),
            ("semaphore", "api"),
        ]
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_ls_and_show_print_the_label_of_a_holder(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """What a holder calls itself is shown; see test_rows.py for what a terminal would obey."""
    async with client.lock("order:42").acquire(label="job 17 → «é»"):
        async with asyncio.timeout(WITHIN):
            while True:
                if (await client.status("order:42")).holders[0].label:
                    break
                await asyncio.sleep(0.05)
        _, output, _ = await cli.here("ls")
        assert "  job 17 → «é»  " in output
        _, output, _ = await cli.here("show", "order:42")
        assert "\nholder  job 17 → «é»  " in output


async def test_top_whose_reader_closes_the_pipe_exits_1_silently(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """It ends without a word."""
    async with client.lock("order:42"), cli.started("top", "--json", "--every", "0.1") as process:
        assert json.loads(await line_of(process))["locks"][0]["name"] == "order:42"
        process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
        assert process.stderr is not None
        assert await asyncio.wait_for(process.stderr.read(), WITHIN) == b""
        assert await asyncio.wait_for(process.wait(), WITHIN) == 1


# --- members


async def test_members_prints_the_members_of_a_group_as_text_and_json(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """Who is there, with what each says about itself; exit code 1 if nobody is."""
    assert await cli.here("members", "workers") == (1, "the group 'workers' has no members\n", "")
    async with client.group("workers", data={"address": "é"}) as me:
        code, output, _ = await cli.here("members", "workers")
        assert code == 0
        head, row = output.splitlines()
        assert head.split() == ["MEMBER", "WHERE", "SHARDS", "DATA", "FOR"]
        assert row.startswith(f"{me.id}  ")
        assert '{"address": "\\u00e9"}' in row
        code, output, _ = await cli.here("members", "workers", "--json")
        (member,) = json.loads(output)
        assert (member["id"], member["data"], member["shards"]) == (me.id, {"address": "é"}, {})
    assert (await cli.here("members", "workers", "--json"))[:2] == (1, "[]\n")


async def test_members_with_watch_prints_each_change_until_it_is_killed(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """A line for each change, of which scripts get JSON."""
    async with (
        client.group("workers", data={"n": 1}) as me,
        cli.started("members", "workers", "--watch") as process,
        cli.started("members", "workers", "--watch", "--json") as script,
    ):
        assert (await line_of(process)).startswith(f"= {me.id} ")
        assert json.loads(await line_of(script))["change"] == "members"
        await me.update({"n": 2})
        assert (await line_of(process)).endswith(' - {"n": 2}')
        changed = json.loads(await line_of(script))
        assert (changed["change"], changed["before"]["data"]) == ("changed", {"n": 1})
        async with client.group("workers") as other:
            assert (await line_of(process)).startswith(f"+ {other.id} ")
        assert (await line_of(process)).startswith(f"- {other.id} ")


# --- top, deadlocks


@asynccontextmanager
async def deadlock(client: aiolock.LockClient, other: aiolock.LockClient) -> AsyncIterator[None]:
    """Two tasks that wait for each other, and are known to."""
    have = asyncio.Barrier(2)

    async def take(client: aiolock.LockClient, first: str, second: str) -> None:
        async with client.lock(first):
            await have.wait()
            async with client.lock(second):
                pass

    tasks = [
        asyncio.create_task(take(client, "A", "B"), name="ours"),
        asyncio.create_task(take(other, "B", "A"), name="theirs"),
    ]
    async with asyncio.timeout(WITHIN):
        while True:
            if await client.deadlocks():
                break
            await asyncio.sleep(0.1)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@pytest.fixture
async def other(redis_server: RedisServer, prefix: str) -> AsyncIterator[aiolock.LockClient]:
    """Another program that uses the same locks."""
    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        yield client


async def test_deadlocks_prints_a_cycle_as_text_and_json_or_that_there_is_none(
    cli: Cli, client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """Who waits for whom, as text and as data; and that nobody does."""
    assert await cli("deadlocks") == (0, "no deadlocks\n", "")
    async with deadlock(client, other):
        code, output, errors = await cli.here("deadlocks")
        assert (code, errors) == (1, "")
        assert output.startswith("2 tasks wait for each other, and none of them can go on:\n")
        assert "'ours' (" in output
        assert "for the lock 'A': 'ours' (" in output
        code, output, _ = await cli.here("deadlocks", "--json")
        assert code == 1
        assert {each["name"] for each in json.loads(output)[0]["cycle"]} == {"A", "B"}


async def test_top_on_a_terminal_shows_locks_and_deadlocks_until_ctrl_c(
    cli: Cli, client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """On a terminal, live: what is held, who waits for each other; Ctrl-C ends it."""
    terminal, its_end = pty.openpty()
    cli.env |= {"TERM": "xterm", "COLUMNS": "160", "LINES": "30"}  # not those of the tests
    async with (
        deadlock(client, other),
        client.lock("[red]evil\x1b[2J"),
        cli.started("top", "--every", "0.1", stdout=its_end) as it,
    ):
        os.close(its_end)
        seen = await shown(terminal, r"[red]evil\x1b[2J")
        assert "DEADLOCK: 2 tasks wait for each other" in seen
        assert "'theirs'" in seen
        async with client.lock("order:42").acquire(label="job 17"):
            await shown(terminal, "order:42")
            await shown(terminal, "job 17")
        it.send_signal(signal.SIGINT)
        assert (await end_of(it))[0] == 130
    os.close(terminal)


async def test_top_without_a_terminal_exits_2(cli: Cli) -> None:
    """It says so where there is none."""
    code, _, errors = await cli("top")
    assert code == 2
    assert "its output must be a terminal" in errors
    assert (await cli.here("top", "--every", "0"))[0] == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
async def test_completion_prints_a_script_of_all_commands_for_each_shell(
    cli: Cli, shell: str
) -> None:
    """A script that knows all commands, and that the shell can read."""
    run = cli if shell == "bash" else cli.here
    code, output, errors = await run("completion", shell)
    assert (code, errors) == (0, "")
    for command in (
        "ls",
        "show",
        "top",
        "members",
        "deadlocks",
        "break",
        "ask",
        "run",
        "check",
        "web",
    ):
        assert command in output
    if shell == "bash":
        bash = await asyncio.create_subprocess_exec("bash", "-n", stdin=asyncio.subprocess.PIPE)
        await bash.communicate(output.encode())
        assert bash.returncode == 0


@pytest.mark.parametrize("command", ["top", "completion"])
async def test_top_and_completion_without_the_cli_extra_name_it(
    cli: Cli, tmp_path: Path, command: str
) -> None:
    """What is missing is named, with what to install; the other commands need nothing."""
    for module in ("rich", "shtab"):
        (tmp_path / f"{module}.py").write_text("raise ImportError('not here')")
    cli.env["PYTHONPATH"] = str(tmp_path)
    terminal, its_end = pty.openpty()
    args = ("top",) if command == "top" else ("completion", "bash")
    async with cli.started(*args, stdout=its_end) as it:
        code, _, errors = await end_of(it)
    os.close(terminal)
    os.close(its_end)
    assert code == 2
    assert "pip install 'aiolock-redis[cli]'" in errors
    assert (await cli("ls"))[0] == 0


async def test_show_prints_holders_of_a_lock_or_that_there_is_none(
    cli: Cli, client: aiolock.LockClient, redis_server: RedisServer, prefix: str
) -> None:
    """One of them, with everybody; and that nobody has it."""
    async with client.semaphore("api", 2) as lease:
        code, output, _ = await cli("show", "--kind", "semaphore", "api")
        assert code == 0
        assert output.startswith("semaphore api: 1 holder, 0 waiting, limit 2\nPLACE ")
        head, row = (re.split(" {2,}", line) for line in output.splitlines()[1:])
        assert head == ["PLACE", "WHO", "WHERE", "FOR", "LEASE", "FENCE", "AS"]
        assert (row[0], row[5:]) == ("holder", [str(lease.fence), "1 permit"])
        _, output, _ = await cli.here("show", "--wide", "api")
        assert re.split(" {2,}", output.splitlines()[1])[7:] == ["SINCE", "CLIENT"]
        assert re.search(rf"\+00:00  {client.id}#\d+\n$", output)
        _, data, _ = await cli.here("show", "--kind", "semaphore", "--json", "api")
        assert json.loads(data)["holders"][0]["pid"] == os.getpid()
    where = f"is held or waited for, under the prefix '{prefix}' at {redis_server.url}\n"
    nothing = f"nothing called 'api' {where}"
    assert await cli.here("show", "api") == (1, nothing, "")
    nothing = f"no semaphore with a name like 'a*' {where}"
    assert await cli.here("show", "--kind", "semaphore", "a*") == (1, nothing, "")


async def test_ls_without_locks_says_so_and_where_without_the_secrets_of_the_url(
    cli: Cli, tmp_path: Path
) -> None:
    """On standard error, for standard output has the locks only; `--json` prints an empty list."""
    cli.env["AIOLOCK_URL"] = f"sqlite:///{tmp_path}/locks.db"
    place = f"is held or waited for, under the prefix '{cli.env['AIOLOCK_PREFIX']}' at sqlite://"
    code, output, errors = await cli.here("ls")
    assert (code, output) == (0, "")
    assert errors.startswith(f"nothing {place}")
    assert (await cli.here("ls", "a", "--kind", "once"))[2].startswith(
        f"no once called 'a' {place}"
    )
    assert await cli.here("ls", "--json") == (0, "[]\n", "")


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("rediss://me:s3cret@db-1,db-2/1?ssl_password=s3cret", "rediss://db-1,db-2/1"),
        ("postgresql://:s3%40cret@[::1]:5432/shop", "postgresql://[::1]:5432/shop"),
        ("etcd://s3cret@localhost", "etcd://localhost"),
        ("unix:///run/redis.sock?password=s3cret", "unix:///run/redis.sock"),
    ],
)
def test_shown_url_has_neither_user_nor_password_nor_options(url: str, named: str) -> None:
    """The servers, and what comes behind them."""
    assert shown_url(url) == named


async def test_show_without_kind_finds_each_kind_and_patterns(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """Without being told which; and names like a pattern, unless it is itself a name."""
    async with client.semaphore("api", 2), client.rwlock("api:rw").read(), client.lock("a[1]"):
        waiting = asyncio.create_task(client.latch("api:latch", 1).wait())
        await waited_for(client, "api:latch", "latch")
        for name, begins in (
            ("api", "semaphore api: 1 holder, 0 waiting, limit 2\n"),
            ("api:rw", "lock api:rw: 1 holder, 0 waiting\n"),
            ("api:latch", "latch api:latch: 0 holders, 1 waiting, limit 1\n"),
            ("a[1]", "lock a[1]: 1 holder, 0 waiting\n"),
        ):
            code, output, _ = await cli.here("show", name)
            assert (code, output.startswith(begins)) == (0, True)
        _, output, _ = await cli.here("show", "api*")
        assert [part.partition(":")[0] for part in output.split("\n\n")] == [
            *("latch api", "lock api", "semaphore api")
        ]
        assert json.loads((await cli.here("show", "--json", "api"))[1])["kind"] == "semaphore"
        assert len(json.loads((await cli.here("show", "--json", "api*"))[1])) == 3
        async with client.lock("api"):
            code, output, errors = await cli.here("show", "--json", "api")
            assert (code, output) == (2, "")
            assert "'api' is the name of several: lock and semaphore" in errors
            assert "\n\nsemaphore" in (await cli.here("show", "api"))[1]
        waiting.cancel()
        await asyncio.wait([waiting])


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
async def test_output_in_another_encoding_escapes_characters_it_lacks(
    cli: Cli, client: aiolock.LockClient, encoding: str
) -> None:
    """Each of them, in what is printed, in errors and in help; nothing ends in the middle."""
    cli.env["PYTHONIOENCODING"] = encoding
    run = cli if encoding == "ascii" else partial(cli.here, encoding=encoding)
    async with client.lock("«é» 😀"):
        code, output, errors = await run("ls")
        assert (code, errors) == (0, "")
        escaped = "«é» 😀".encode(encoding, "backslashreplace").decode(encoding)
        assert escaped in output.encode(errors="surrogateescape").decode(encoding)
        assert (await run("show", "«é» 😀"))[0] == 0
        code, _, errors = await run("run", "-n", "«é» 😀", *sh("exit 3"))
        assert code == 75
        assert escaped in errors.encode(errors="surrogateescape").decode(encoding)
    for args in (("--help",), ("run", "--help"), ("demo", "--help")):
        code, output, errors = await run(*args)
        assert (code, errors) == (0, "")
        assert "\\u" not in output


@pytest.mark.parametrize("args", [("--help",), ("ls", "--json"), ("completion", "bash")])
async def test_output_that_cannot_be_written_ends_without_a_traceback(
    cli: Cli, args: tuple[str, ...]
) -> None:
    """Without a traceback; a disk that is full is named."""
    for redirection, says in ((">&-", ""), ("| true", ""), (">/dev/full", "No space left")):
        script = f'"$@" {redirection}'
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", script, "sh", sys.executable, "-m", "aiolock", *args),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | cli.env | {"PYTHONUNBUFFERED": ""},
        )
        _, output, errors = await end_of(process)
        assert output == ""
        assert says in errors
        assert "Traceback" not in errors
        assert "Exception ignored" not in errors


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("args", [("ls", "--json"), ("check",), ("top", "--json")])
async def test_output_on_a_full_disk_is_told_in_one_line_with_its_own_exit_code(
    cli: Cli, args: tuple[str, ...], unbuffered: str
) -> None:
    """Also where it fails while the command is at work."""
    cli.env["AIOLOCK_URL"] = "memory://"
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", '"$@" >/dev/full', "sh", sys.executable, "-m", "aiolock", *args),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | cli.env | {"PYTHONUNBUFFERED": unbuffered},
    )
    code, _, errors = await end_of(process)
    line = "aiolock: the output cannot be written: [Errno 28] No space left on device\n"
    assert (code, errors) == (74, line)


@pytest.mark.parametrize(
    ("redirection", "args", "code"),
    [
        (">&-", ("check",), 0),
        ("<&-", ("init-quorum", "redis://a", "redis://b", "redis://c"), 2),
        ("<&-", ("break", "a"), 2),
    ],
)
async def test_command_with_a_closed_stream_ends_without_a_traceback(
    cli: Cli, redirection: str, args: tuple[str, ...], code: int
) -> None:
    """Python has None in its place."""
    cli.env["AIOLOCK_URL"] = "memory://"
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", f'"$@" {redirection}', "sh", sys.executable, "-m", "aiolock", *args),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | cli.env,
    )
    found, _, errors = await end_of(process)
    assert found == code
    assert "Traceback" not in errors


async def test_ls_on_a_terminal_cuts_long_names_unless_wide(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """In the middle, where names differ least; not with --wide, and not in a pipe."""
    cli.env["COLUMNS"] = "100"
    name = "order:" + "x" * 200 + ":42"
    async with client.lock(name), client.lock("注文:" + "文" * 100 + ":7"):
        async with at_a_terminal(cli, "ls") as (it, terminal):
            seen = await shown(terminal, ":42")
            assert (await end_of(it))[0] == 0
        assert name not in seen
        lines = seen.splitlines()
        assert re.search(r"order:x+…x+:42  ", seen)
        assert {len(line) <= 100 for line in lines} == {True}
        async with at_a_terminal(cli, "ls", "--wide") as (it, terminal):
            await shown(terminal, name)
        assert name in (await cli("ls"))[1]


# --- break, ask


async def test_break_takes_the_lock_from_one_or_all_holders_and_requires_yes(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """Taken from one holder or from all; never where nobody was asked whether to."""
    api = client.semaphore("api", 3)
    leases = [await api.acquire() for _ in range(3)]
    code, _, errors = await cli("break", "--kind", "semaphore", "api")
    assert (code, errors) == (
        2,
        "aiolock break: without a terminal, this cannot ask for confirmation: use --yes\n",
    )
    fence = str(leases[1].fence)
    code, output, _ = await cli("break", "--kind", "semaphore", "--yes", "--fence", fence, "api")
    assert (code, output) == (0, "'api' was taken away\n")
    await asyncio.wait_for(leases[1].lost.wait(), WITHIN)
    assert not leases[0].lost.is_set()
    assert (await cli.here("break", "--kind", "semaphore", "--yes", "api"))[0] == 0
    for lease in leases:
        await asyncio.wait_for(lease.lost.wait(), WITHIN)
    assert await cli.here("break", "--yes", "api") == (1, "it had no holder\n", "")
    async with client.lock("api"):
        other = await cli.here("break", "--yes", "--fence", "7", "--kind", "lock", "api")
        assert other == (1, "no holder has the fence 7\n", "")


async def test_detached_lease_is_shown_without_its_key_and_broken_by_its_fence(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """By `ls`, `show` and `top`, with its label; after `break` its token is spent."""
    lease = await client.lock("order:42").acquire()
    token = await lease.detach(label="order 42 → worker")
    printed = list[str]()
    for command in (("ls",), ("show", "order:42"), ("show", "--json", "order:42")):
        code, output, errors = await cli.here(*command)
        assert (code, errors) == (0, "")
        assert "order 42" in output
        assert "detached" in output
        printed.append(output)
    async with cli.started("top", "--json", "--every", "0.1") as process:
        printed.append(line := await line_of(process))
        (holder,) = json.loads(line)["locks"][0]["holders"]
        assert (holder["detached"], holder["client"]) == (True, "")
    assert not [text for text in printed if token._key in text]
    fence = ("--fence", str(token.fence))
    code, output, _ = await cli("break", "--yes", *fence, "order:42")
    assert (code, output) == (0, "'order:42' was taken away\n")
    with pytest.raises(aiolock.TokenSpent):
        await client.adopt(token)


async def test_break_without_kind_finds_each_kind_and_patterns(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """Without being told which, or which of several; and names like a pattern."""
    api = await client.semaphore("api", 3).acquire()
    assert await cli.here("break", "--yes", "api") == (0, "'api' was taken away\n", "")
    await asyncio.wait_for(api.lost.wait(), WITHIN)
    leases = [
        *(await client.lock("api").acquire(), await client.semaphore("api", 3).acquire()),
        await client.rwlock("api:rw").read().acquire(),
    ]
    code, output, errors = await cli.here("break", "--yes", "api")
    assert (code, output) == (2, "")
    assert "'api' is the name of several: lock and semaphore. Use --kind" in errors
    assert not any(lease.lost.is_set() for lease in leases)
    code, output, _ = await cli.here("ask", "--kind", "lock", "api")
    assert (code, output) == (0, "the holder of 'api' was asked to release it\n")
    code, output, _ = await cli.here("break", "--yes", "api*")
    assert (code, set(output.splitlines())) == (
        0,
        {"'api' was taken away", "'api:rw' was taken away"},
    )
    for lease in leases:
        await asyncio.wait_for(lease.lost.wait(), WITHIN)


@pytest.mark.one_loop
async def test_break_that_fails_for_one_holder_breaks_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The others are taken away all the same, and both is said."""
    store = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(store) as client:
        leases = [await client.semaphore("api", 3).acquire() for _ in range(3)]
        grants = [("semaphore", "api", lease.fence) for lease in leases]
        order = argparse.Namespace(name="api", kind=None, grants=grants, fence=None)
        store.refuse("break_")
        with pytest.raises(aiolock.StoreError, match="refused"):
            await break_._break(client, order)
        for lease in leases[1:]:
            await asyncio.wait_for(lease.lost.wait(), WITHIN)
        assert capsys.readouterr().out == "'api' was taken away\n"
        order.grants = grants[:1]
        store.refuse("break_")
        with pytest.raises(aiolock.StoreError, match="refused"):
            await break_._break(client, order)
        assert not capsys.readouterr().out, "nobody knows whether it was taken away"


_NOT_HEARD_BY_WHO_WAITS = """
import signal, threading
from aiolock.cli.signals import typed_line

signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
try:
    print("ready", flush=True)
    typed_line()
except KeyboardInterrupt:
    print("interrupted")
"""
"""Another thread gets the signal: the call that waits is not interrupted, as if it began later."""


def test_typed_line_interrupted_by_ctrl_c_of_another_thread_raises() -> None:
    """It ends the waiting, though the call that waits does not see it."""
    terminal, its_end = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-P", "-c", _NOT_HEARD_BY_WHO_WAITS],
        stdin=its_end,
        stdout=subprocess.PIPE,
    )
    with program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == b"ready\n"
            give_up = time.monotonic() + WITHIN
            while state(program.pid) != "S":  # from here on it does wait
                assert time.monotonic() < give_up, "it does not wait"
                time.sleep(0.001)
            program.send_signal(signal.SIGINT)
            assert program.communicate(timeout=WITHIN)[0] == b"interrupted\n"
        finally:
            program.kill()
            os.close(terminal)
            os.close(its_end)


async def test_break_at_a_terminal_shows_the_holder_and_asks_for_confirmation(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """At a terminal it shows who holds it, and asks; Ctrl-C ends it there."""
    lease = await client.lock("a").acquire()
    for typed, code in ((b"n\n", 1), (b"\n", 1), (b"", 130), (b"y\n", 0)):
        terminal, its_end = pty.openpty()
        async with cli.started("break", "a", stdin=its_end) as it:
            assert await line_of(it) == "lock a: 1 holder, 0 waiting"
            assert (await line_of(it)).endswith("  FENCE")
            assert (await line_of(it)).endswith(f"  {lease.fence}")
            assert it.stdout is not None
            await asyncio.wait_for(it.stdout.readuntil(b"[y/N] "), WITHIN)
            assert not lease.lost.is_set()
            if typed:
                os.write(terminal, typed)
            else:
                it.send_signal(signal.SIGINT)
            assert (await end_of(it))[0] == code
        os.close(terminal)
        os.close(its_end)
    await asyncio.wait_for(lease.lost.wait(), WITHIN)


async def test_ask_tells_the_holder_to_release_or_that_there_is_none(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """The holder is told, and that is all."""
    async with client.lock("a") as lease:
        assert (await cli("ask", "a"))[0] == 0
        await asyncio.wait_for(lease.requested.wait(), WITHIN)
    assert await cli.here("ask", "a") == (1, "it has no holder\n", "")


# --- check


async def test_check_times_each_step_and_exits_1_beyond_max_ms(
    cli: Cli, redis_server: RedisServer
) -> None:
    """What was tried, and how long it took; too slow is an exit code of its own."""
    code, output, errors = await cli("check")
    assert (code, errors) == (0, "")
    protocol, *lines, last = output.splitlines()
    assert protocol.split() == ["protocol", "1"]
    assert [line.rpartition("ms")[0].rsplit(maxsplit=1)[0].strip() for line in lines] == [
        *("open", "acquire and release", "hand over"),
    ]
    assert last == "ok"
    code, output, _ = await cli.here("check", "--max-ms", "0.0001", "--json")
    found = json.loads(output)
    assert code == 1
    assert found["slow"] == ["acquire and release", "hand over"]
    assert found["warnings"] == []
    left = redis_server.call("KEYS", f"{cli.env['AIOLOCK_PREFIX']}:*:holders")
    # But for the label of one that has waited for a second or two, on a busy machine.
    assert not [key for key in left if "{client:" not in key]


async def test_check_warns_of_an_eviction_policy(own_server: RedisServer, prefix: str) -> None:
    """Of what makes a store less safe than it could be."""
    own_server.call("CONFIG", "SET", "maxmemory", "100mb")
    own_server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    code, output, errors = await Cli(own_server.url, prefix)("check")
    assert (code, errors) == (0, "")
    assert output.count("warning: maxmemory-policy is allkeys-lru") == 1


# --- run


async def test_run_executes_its_command_under_the_lock_and_returns_its_exit_code(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """The command runs under the lock, is told of it, and its exit code is ours."""
    script = 'echo "$AIOLOCK_NAME $AIOLOCK_FENCE"; cat; exit 7'
    async with cli.started("run", "job", *sh(script)) as it:
        name, fence = (await line_of(it)).split()
        assert (await end_of(it))[0] == 7
    assert name == "job"
    async with client.lock("job") as lease:
        assert int(fence) < lease.fence


@pytest.mark.parametrize("options", [(), ("--limit", "2"), ("--once", "60")])
async def test_run_has_the_name_of_its_command_as_its_label(
    cli: Cli, client: aiolock.LockClient, options: tuple[str, ...]
) -> None:
    """Without the arguments, which may be secret."""
    kind = {"--limit": "semaphore", "--once": "once"}.get("".join(options[:1]), "lock")
    async with cli.started("run", *options, "job", *sh("echo; sleep 60")) as it:
        await line_of(it)
        async with asyncio.timeout(WITHIN):
            while not (label := (await client.status("job", kind=kind)).holders[0].label):  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.05)
        assert label == "sh"
        it.terminate()
        assert (await end_of(it))[0] == 128 + signal.SIGTERM


async def test_run_excludes_others_and_exits_75_if_the_lock_is_held(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """While it runs nobody else has the lock; -n and -t say for how long to wait for it."""
    async with client.lock("job"):
        code, output, errors = await cli("run", "-n", "job", *sh("echo ran"))
        assert (code, output) == (75, "")
        assert "aiolock run: the lock 'job'" in errors
        assert f"process {os.getpid()} of" in errors, "it says who holds it"
        assert (await cli("run", "-t", "0.1", "job", *sh("echo ran")))[:2] == (75, "")
    async with cli.started("run", "job", *sh("echo in; exec sleep 30")) as it:
        assert await line_of(it) == "in"
        assert await client.lock("job").try_acquire() is None


async def test_run_passes_arguments_after_the_first_dashes_unchanged(cli: Cli) -> None:
    """What stands behind the first -- is the command's, as it is."""
    command = ("--", "printf", "%s,", "--", "-n", "--ttl", "a b")
    assert (await cli("run", "job", *command))[:2] == (0, "--,-n,--ttl,a b,")


async def test_run_with_limit_allows_so_many_at_once(cli: Cli, client: aiolock.LockClient) -> None:
    """So many at once."""
    async with client.semaphore("job", 2):
        assert (await cli("run", "-n", "--limit", "2", "job", *sh("echo ran")))[:2] == (0, "ran\n")
        async with client.semaphore("job", 2):
            assert (await cli("run", "-n", "--limit", "2", "job", *sh("echo ran")))[0] == 75


async def test_run_once_repeats_failed_work_and_skips_done_work_silently(cli: Cli) -> None:
    """What has been done is not done again; what has failed is."""
    assert (await cli("run", "--once", "60", "job", *sh("exit 3")))[0] == 3
    assert (await cli("run", "--once", "60", "job", *sh("echo ran")))[:2] == (0, "ran\n")
    # Without a word, or cron would send a mail from each machine that comes too late.
    assert await cli("run", "--once", "60", "job", *sh("echo ran")) == (0, "", "")
    says = "aiolock run: 'job' is done already\n"
    assert await cli("run", "--verbose", "--once", "60", "job", *sh("echo ran")) == (
        0,
        "",
        says,
    )


async def test_run_every_takes_turns_between_processes_until_sigterm(cli: Cli) -> None:
    """One run in each period, in turn; SIGTERM ends whoever waits, or runs."""
    command = ("run", "--every", "0.5", "job", *sh('echo "$AIOLOCK_FENCE"'))
    async with cli.started(*command) as one, cli.started(*command) as other:
        fences = [int(await line_of(each)) for each in (one, other, one, other)]
        assert fences[2] > fences[0]
        assert fences[3] > fences[1]
        assert abs(fences[2] - fences[1]) > 250_000 or abs(fences[1] - fences[0]) > 250_000
        for each in (one, other):
            each.terminate()
            assert (await end_of(each))[0] == 128 + signal.SIGTERM


async def test_run_every_at_a_terminal_is_ended_by_ctrl_c(cli: Cli) -> None:
    """Ctrl-C ends the run, and whoever would begin the next one; the command gets it.

    It gets it once, or twice where it has begun before `aiolock run` knows that it has.
    """
    script = "trap 'echo got it; n=x$n' INT; echo begun; while [ -z $n ]; do sleep 0.05; done"
    command = ("run", "--every", "0.5", "job", *sh(f"{script}; sleep 0.2; echo ends with $n"))
    async with at_a_terminal(cli, *command) as (it, terminal):
        await shown(terminal, "begun")
        os.write(terminal, b"\x03")
        assert "begun" not in await shown(terminal, "ends with x")
        assert (await end_of(it))[0] == 128 + signal.SIGINT


async def test_run_passes_sigint_to_a_command_that_took_the_foreground(cli: Cli) -> None:
    """A command that takes the foreground for itself, as a shell does, gets our signals from us."""
    program = """
import os, signal, time
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
os.setpgid(0, 0)
os.tcsetpgrp(0, os.getpid())
try:
    print("in", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    raise SystemExit(9)
"""
    command = ("run", "job", "--", sys.executable, "-c", program)
    async with at_a_terminal(cli, *command) as (it, terminal):
        await shown(terminal, "in")
        it.send_signal(signal.SIGINT)
        assert (await end_of(it))[0] == 9


async def test_run_that_loses_the_lock_ends_its_command_and_exits_76(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """The command, and what it has started, gets SIGTERM, and SIGKILL if that ends nothing."""
    polite = "trap 'echo ended; exit 0' TERM; echo $$; sleep 60 & wait"
    stubborn = "trap '' TERM; sleep 60 & echo $!; while :; do sleep 0.1; done"
    for script, says in ((polite, "ended\n"), (stubborn, "")):
        async with cli.started("run", "--grace", "0.3", "job", *sh(script)) as it:
            pid = int(await line_of(it))
            assert await client.break_("job")
            code, output, errors = await end_of(it)
            assert (code, output) == (76, says)
            assert "was lost: somebody broke it" in errors
            await gone(pid)


async def test_run_passes_signals_on_and_releases_when_its_command_ends(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """The command gets them, and decides; the lock is given back when it has ended."""
    for name in ("TERM", "INT", "HUP", "USR1", "QUIT"):
        number = signal.Signals[f"SIG{name}"]
        script = f"trap 'echo got {name}; exit 9' {name}; echo in; while :; do sleep 0.05; done"
        async with cli.started("run", "job", *sh(script)) as it:
            assert await line_of(it) == "in"
            it.send_signal(number)
            assert (await end_of(it))[:2] == (9, f"got {name}\n")
        async with client.lock("job", timeout=1):
            pass


async def test_run_with_an_ignored_signal_keeps_it_ignored_for_the_command(cli: Cli) -> None:
    """What is ignored stays so, for the command as well."""
    script = "echo in; kill -HUP $$; kill -HUP $PPID; sleep 0.2; echo out"
    # By a shell: some event loops let no process begin with a signal that is ignored.
    nohup = ("sh", "-c", "trap '' HUP; exec \"$@\"", "sh")
    async with cli.started("run", "job", *sh(script), by=nohup) as it:
        assert (await end_of(it))[:2] == (0, "in\nout\n")


async def test_run_interrupted_while_it_waits_leaves_the_queue(
    cli: Cli, client: aiolock.LockClient
) -> None:
    """By a signal: it leaves the queue."""
    async with client.lock("job"):
        async with cli.started("run", "job", *sh("echo ran")) as it:
            await waited_for(client, "job")
            it.send_signal(signal.SIGINT)
            assert await end_of(it) == (128 + signal.SIGINT, "", "")
        assert not (await client.status("job")).waiters


async def test_run_of_a_command_ended_by_a_signal_exits_128_plus_its_number(cli: Cli) -> None:
    """Its exit code is that of a shell."""
    assert (await cli("run", "job", *sh("kill -KILL $$")))[0] == 128 + signal.SIGKILL


PR_SET_CHILD_SUBREAPER = 36
LEAVE_ORPHAN = "(sh -c 'echo $$' &) ; sleep 0.5"
COUNT_ZOMBIES = """
n=0
while left=$(ps -o stat= --ppid $PPID | grep -c Z); [ $left != 0 ] && [ $n -lt 100 ]; do
  n=$((n + 1)); sleep 0.1
done
echo $left
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux")
async def test_run_as_subreaper_reaps_orphans(cli: Cli) -> None:
    """As the first process of a container it is the parent of all who have lost theirs."""

    def adopt() -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)

    script = f"{LEAVE_ORPHAN}; {COUNT_ZOMBIES}"
    _, output, _ = await cli.run_with(adopt, "run", "job", *sh(script))
    orphan, zombies = output.split()
    assert int(orphan) > 0
    assert zombies == "0"


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux")
async def test_run_reaps_a_child_that_ended_before_its_command(cli: Cli) -> None:
    """Also who ended before the command was started."""
    # By a shell: not on every event loop may what begins a process fork.
    leave = ("sh", "-c", 'true & exec "$@"', "sh")
    script = COUNT_ZOMBIES.replace("$PPID", "$(ps -o ppid= -p $PPID)")
    async with cli.started("run", "job", *sh(script), by=leave) as it:
        assert await end_of(it) == (0, "0\n", "")


async def test_run_of_a_command_that_cannot_start_exits_127_or_126_and_releases(cli: Cli) -> None:
    """As a shell says it; and the lock is free again."""
    code, _, errors = await cli("run", "job", "--", "/no/such/command")
    assert (code, errors) == (127, "aiolock run: /no/such/command: there is no such command\n")
    code, _, errors = await cli("run", "job", "--", "/")
    assert (code, errors) == (126, "aiolock run: /: permission to run it is denied\n")
    assert (await cli("show", "job"))[0] == 1


# --- What goes wrong


async def test_ls_and_check_without_a_store_exit_69_with_one_line() -> None:
    """One line, and an exit code of its own."""
    with hold_port() as held:
        port = held.getsockname()[1]
        code, output, errors = await Cli(f"redis://127.0.0.1:{port}", "p")("ls")
        assert (await Cli(f"redis://127.0.0.1:{port}", "p")("check"))[0] == 69
    assert (code, output) == (69, "")
    assert errors.startswith(f"aiolock ls: Redis at 127.0.0.1:{port} ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("check", "--json", "--report"), "argument --report: not allowed with argument --json"),
        (("ls", "--url", ""), "no store is named: use --url, or set AIOLOCK_URL"),
        (("ls", "--url", "ftp://here"), "URL of a lock store begins with one of"),
        (("show", ""), "name"),
        (("run", "--ttl", "0", "job", "--", "true"), "ttl"),
        (("run", "--limit", "0", "job", "--", "true"), "limit"),
        (("run", "--every", "60", "-n", "job", "--", "true"), "--every waits for its turn"),
        (("run", "-n", "-t", "1", "job", "--", "true"), "not allowed with argument"),
        (("run", "job"), "COMMAND"),
        (("run", "--grace", "nan", "job", "--", "true"), "'nan' is not a number of seconds"),
        (("run", "--grace", "-1", "job", "--", "true"), "--grace"),
        (("run", "--ttl", "inf", "job", "--", "true"), "'inf' is not a number of seconds"),
        (("run", "-t", "soon", "job", "--", "true"), "'soon' is not a number of seconds"),
        (("check", "--max-ms", "nan"), "'nan' is not a number of at least 0"),
        (("top", "--every", "nan"), "'nan' is not a number of seconds"),
    ],
)
def test_commands_with_wrong_arguments_exit_2_and_say_why(
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    says: str,
) -> None:
    """Exit code 2, and what is wrong. In this process, where a traceback would end the test."""
    for name, value in cli.env.items():
        monkeypatch.setenv(name, value)
    try:
        code: object = main(args)
    except SystemExit as end:
        code = end.code
    output, errors = capsys.readouterr()
    assert (code, output) == (2, "")
    assert says in errors
    assert "Traceback" not in errors
