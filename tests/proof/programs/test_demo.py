"""`aiolock demo`, run as its users run it."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import IO, Any
from unittest import mock

import pytest

from aiolock.cli.demo.contention import REDIS_PY, WITH_KILLS, WITH_LOCK
from aiolock.cli.main import main
from tests.support.demos import IN_MEMORY, aiolock_command, make_only, run, run_json
from tests.support.servers import RedisServer

KEYS = "aiolock-demo-*"
# From the first kill on, for the seconds of a claim: enough for a test to do what it likes.
STANDING_STILL = ("--workers", "3", "--items", "40", "--requests", "40", "--ttl", "60")


@contextmanager
def running(
    *args: str, stdout: int | IO[str] = subprocess.PIPE
) -> Generator[subprocess.Popen[str]]:
    """Run it while the test does something to it."""
    # Where the tests are a background job, SIGINT is ignored, and would be by our child.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            aiolock_command(*args), stdout=stdout, stderr=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    """Read its output up to the line with this text."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"it ended without {text!r}")


def wait_until_alone(server: RedisServer) -> None:
    """Wait until nobody but ourselves is connected to the server."""
    deadline = time.monotonic() + 10
    while len(clients := server.call("CLIENT", "LIST").splitlines()) > 1:
        assert time.monotonic() < deadline, clients
        time.sleep(0.02)


class TestInMemory:
    """In one process."""

    def test_demo_with_one_request_at_once_is_right_without_a_lock(self) -> None:
        """Where nobody competes both runs are right, and there is no hand-off to measure."""
        said = run_json(*IN_MEMORY, "--items", "5", "--requests", "1")
        assert said["without_lock"]["oversold"] == 0
        assert said["without_lock"]["left"] == 0
        assert said["with_lock"]["handoff_ms"] is None

    def test_demo_in_a_pipe_prints_a_table_without_terminal_codes(self) -> None:
        """What a person reads: a title, the runs, the table, its words, the verdict."""
        done = run("demo", *IN_MEMORY, "--items", "300", "--requests", "20")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("Contention on memory://, processes: 1, requests at once: 20")
        assert re.search(r"^  oversold +20 +0$", done.stdout, re.MULTILINE)
        assert re.search(r"^  requests a second +- +[\d,]+$", done.stdout, re.MULTILINE)
        assert "Without a lock: 320 requests were told yes, and the stock went" in done.stdout
        assert re.search(r"^  hand-off, ms +from one's work to the next", done.stdout, re.MULTILINE)
        assert "exactly right: each item was sold once.\n" in done.stdout
        assert not set("\x1b\r") & set(done.stdout)

    def test_demo_whose_reader_closes_the_pipe_ends_without_a_traceback(self) -> None:
        """``aiolock demo | head -1`` is no reason for a traceback."""
        reader, writer = os.pipe()
        with (
            os.fdopen(reader) as pipe,
            os.fdopen(writer, "w") as out,
            running("demo", *IN_MEMORY, "--items", "2000", stdout=out) as process,
        ):
            out.close()
            pipe.readline()
            pipe.close()
            _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (1, "")


def assert_killed(said: dict[str, Any], ttl: float) -> None:
    """Three of four workers were killed, and the count is right all the same."""
    with_kills = said["with_kills"]
    assert (with_kills["sold"], with_kills["oversold"], with_kills["left"]) == (200, 0, 0)
    assert with_kills["overtaken"] == 0
    killed = {kill["worker"]: kill for kill in said["killed"]}
    fates = {worker: (kill["holding"], kill["wrote"]) for worker, kill in killed.items()}
    assert fates == {1: (True, False), 2: (False, False), 3: (True, True)}
    assert [killed[worker]["waiting"] for worker in (1, 2, 3)] == [4, 5, 4]
    # A guard only: the others waited for the end of the lease, and not for anything longer.
    assert 0 < killed[1]["cost_ms"] / 1000 < ttl + 2
    assert 0 < killed[3]["cost_ms"] / 1000 < ttl + 2
    assert 0 < killed[2]["cost_ms"] / 1000 < ttl


class TestInAFile:
    """Without a server: in an SQLite file, with worker processes, of which some are killed."""

    def test_demo_with_three_of_four_workers_killed_sells_each_item_once(
        self, tmp_path: Path
    ) -> None:
        """Killed before the write, in the queue, and after the write; the files are removed."""
        said = run_json(
            *("--items", "200", "--requests", "20", "--ttl", "1.5"), TMPDIR=str(tmp_path)
        )
        assert said["server"].startswith("sqlite:////")
        assert said["without_lock"]["oversold"] > 0
        assert (said["with_lock"]["sold"], said["with_lock"]["overtaken"]) == (200, 0)
        assert_killed(said, 1.5)
        assert "redis_py_lock" not in said
        assert list(tmp_path.iterdir()) == []


class TestOnRedis:
    """On a real server, with worker processes, of which some are killed."""

    def test_demo_with_three_of_four_workers_killed_sells_each_item_once(
        self, redis_server: RedisServer
    ) -> None:
        """Killed before the write, in the queue, and after the write; nothing is left behind."""
        said = run_json(
            *("--url", redis_server.url, "--workers", "4"),
            *("--items", "200", "--requests", "20", "--ttl", "1.5"),
        )
        assert said["without_lock"]["oversold"] > 0
        assert (said["with_lock"]["sold"], said["with_lock"]["overtaken"]) == (200, 0)
        assert_killed(said, 1.5)
        # redis-py's lock has the same workers, as far as it got.
        peer = said["redis_py_lock"]
        assert peer["items"] == 200 == peer["sold"] + peer["left"]
        assert 0 <= peer["overtaken"] <= peer["waited"]
        assert redis_server.call("KEYS", KEYS) == []

    @pytest.mark.parametrize(("workers", "holders"), [(2, {1}), (5, {1, 3})])
    def test_demo_kills_all_workers_but_one_at_most(
        self,
        redis_server: RedisServer,
        workers: int,
        holders: set[int],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """Even where a single item is for sale, so that most find that it is sold out."""
        make_only(monkeypatch, WITH_KILLS)
        asked = ["--url", redis_server.url, "--workers", str(workers), "--items", "1"]
        assert main(["demo", "--json", *asked, "--requests", str(workers), "--ttl", "1"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["with_kills"]["sold"] == 1
        killed = {kill["worker"] for kill in said["killed"]}
        assert holders <= killed <= holders | {2}  # which may have ended by then

    def test_demo_with_no_kill_needs_two_commands_a_handoff(
        self, redis_server: RedisServer
    ) -> None:
        """Then a contended hand-off is two commands, but for telling the server the scripts.

        redis-py's lock makes two at least, and one more each time that it asks in vain.
        """
        said = run_json(
            *("--url", redis_server.unix_url, "--workers", "2", "--no-kill"),
            *("--items", "400", "--requests", "4", "--ttl", "30"),
        )
        assert said["killed"] == []
        assert "with_kills" not in said
        assert said["with_lock"]["requests"] == 404
        assert 1 <= said["with_lock"]["commands"] < 2.2
        assert said["with_lock"]["handoff_ms"][0] > 0
        peer = said["redis_py_lock"]
        assert (peer["sold"], peer["left"]) == (400, 0)
        assert peer["requests"] == 404
        assert peer["commands"] >= 2
        assert redis_server.call("KEYS", KEYS) == []

    def test_demo_ends_workers_that_poll_a_held_redis_py_lock(
        self, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Workers that are polling a lock of somebody else."""
        monkeypatch.setattr("secrets.token_hex", mock.Mock(return_value="test"))
        make_only(monkeypatch, WITH_LOCK, REDIS_PY._replace(seconds=1.0))
        redis_server.call("SET", "aiolock-demo-test:redis-py", "somebody else's", "EX", 60)
        printed = io.StringIO()
        asked = ["--workers", "2", "--items", "10", "--requests", "4", "--no-kill"]
        with redirect_stdout(printed):
            assert main(["demo", "--url", redis_server.url, *asked]) == 0
        assert "It was ended after 1 s, with 10 items left." in printed.getvalue()
        assert redis_server.call("KEYS", KEYS) == []

    def test_demo_whose_server_is_gone_exits_2_with_one_line(self) -> None:
        """By a worker, in the middle of a run; no worker stays."""
        with RedisServer() as server:
            url = server.url
            with running("demo", "--url", url, "--items", "20000") as process:
                wait_for(process, "With aiolock")
                server.kill()
                _, errors = process.communicate(timeout=30)
        assert process.returncode == 2
        *warnings, said = errors.splitlines()
        assert said.startswith(f"aiolock demo: {url}: ")
        assert all(line.startswith("aiolock: ") for line in warnings)

    @pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM], ids=["sigint", "sigterm"])
    def test_demo_interrupted_leaves_no_key_worker_or_traceback(
        self, redis_server: RedisServer, ending: signal.Signals
    ) -> None:
        """While all wait for a lease to end: a word, no traceback; no key and no worker stays."""
        with running("demo", "--url", redis_server.url, *STANDING_STILL) as process:
            wait_for(process, "SIGKILL")
            process.send_signal(ending)
            _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (130, "aiolock demo: interrupted\n")
        assert redis_server.call("KEYS", KEYS) == []
        wait_until_alone(redis_server)

    def test_demo_killed_itself_leaves_no_worker_and_only_expiring_keys(
        self, own_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody is left to kill them, and what they leave on the server has an expiry."""
        monkeypatch.setenv("TMPDIR", str(tmp_path))  # where its files stay
        with running("demo", "--url", own_server.url, *STANDING_STILL) as process:
            wait_for(process, "SIGKILL")
            process.kill()
            process.wait()
            wait_until_alone(own_server)
        keys = own_server.call("KEYS", KEYS)
        assert keys
        assert all(own_server.call("PTTL", key) > 0 for key in keys)

    def test_demo_with_a_password_uses_it_and_does_not_show_it(self) -> None:
        """Workers get it too, and it is in no output and no list of processes."""
        with RedisServer(password="right-one") as server:
            done = run(
                *("demo", "--url", server.url, "--workers", "2", "--no-kill"),
                *("--items", "20", "--requests", "4"),
            )
        assert (done.returncode, done.stderr) == (0, "")
        assert "right-one" not in done.stdout
