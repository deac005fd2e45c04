"""Runs `aiolock demo` on a Redis of its own, and keeps what it printed for the front page.

    .venv/bin/python docs-theme/capture.py

What is left out is marked with an ellipsis: how the runs went. Everything else is as it was
printed.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "docs" / "assets" / "demo.txt"


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("localhost", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def demo() -> str:
    """What the demo prints, on a server that is there for it alone."""
    redis = shutil.which("redis-server")
    if redis is None:
        sys.exit("there is no redis-server on the PATH")
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [redis, "--port", str(port), "--save", "", "--dir", folder],
            stdout=subprocess.DEVNULL,
        )
        try:
            for _ in range(100):  # until it listens
                with socket.socket() as probe:
                    if probe.connect_ex(("localhost", port)) == 0:
                        break
                time.sleep(0.05)
            done = subprocess.run(
                [sys.executable, "-m", "aiolock", "demo", "--url", f"redis://localhost:{port}"],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        finally:
            server.terminate()
            server.wait()
    return f"$ aiolock demo --url redis://localhost:{port}\n{done.stdout}"


def shortened(printed: str) -> str:
    """The same without how the runs went, and an ellipsis where that was."""
    if "ended after" in printed:
        sys.exit("the run with redis-py's lock did not come to its end: the machine is busy")
    command, _, rest = printed.partition("\n\nWithout a lock\n")
    table = rest.index("\n\n" + " " * 20)
    return f"{command}\n\n  …{rest[table:]}"


if __name__ == "__main__":
    KEPT.write_text(shortened(demo()), "utf-8")
