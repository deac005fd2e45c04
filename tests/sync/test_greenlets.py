"""aiolock.sync under gevent and eventlet: refused at once, because greenlets are no threads."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

pytestmark = pytest.mark.one_loop

PATCHED = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "gevent without threads": "from gevent import monkey; monkey.patch_all(thread=False)",
    "gevent, one module": "from gevent import monkey; monkey.patch_socket()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
    "eventlet without threads": "import eventlet; eventlet.monkey_patch(thread=False)",
}

CONNECTS = """
{patch}
import aiolock.sync
try:
    aiolock.sync.connect("memory://")
except RuntimeError as error:
    print(error)
"""

USES = """
import aiolock.sync
client = aiolock.sync.connect("memory://")
with client.lock("a", reentrant=True):
    {patch}
    try:
        with client.lock("a", reentrant=True):
            print("entered")
    except RuntimeError as error:
        print(error)
"""

IN_A_GREENLET = """
import gevent
import aiolock.sync

def enter(client):
    try:
        with client.lock("a", reentrant=True):
            print("entered")
    except RuntimeError as error:
        print(error)

with aiolock.sync.connect("memory://") as client:
    with client.lock("a", reentrant=True):  # by the thread itself: gevent is only imported
        print("the thread")
        gevent.joinall([gevent.spawn(enter, client)])
"""


def need(library: str) -> None:
    """Skip the test without it. Not imported here: it would hook into each fork of this process."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


def run(program: str) -> list[str]:
    """What the program prints; it must end by itself."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("how", PATCHED)
def test_connect_in_a_patched_process_is_refused(how: str) -> None:
    """The text names the library, and what to use instead."""
    library = how.split(maxsplit=1)[0].rstrip(",")
    need(library)
    (said,) = run(CONNECTS.format(patch=PATCHED[how]))
    assert said.startswith(f"{library} has monkey-patched this process")
    assert "gthread" in said


@pytest.mark.parametrize("how", ["gevent without threads", "eventlet without threads"])
def test_client_made_before_the_patch_is_refused_after_it(how: str) -> None:
    """A server may patch after the application has made its client."""
    library = how.split(maxsplit=1)[0]
    need(library)
    said = run(USES.format(patch=PATCHED[how]))
    assert [line.split(" has ")[0] for line in said] == [library]


def test_lock_entered_in_a_greenlet_is_refused() -> None:
    """It would be inside with every other greenlet of its thread."""
    need("gevent")
    first, said = run(IN_A_GREENLET)
    assert first == "the thread"
    assert said.startswith("gevent runs this greenlet")
