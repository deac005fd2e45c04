"""``aiolock web``: a live page of holders and waiters, for a browser."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import secrets
import socket
from collections.abc import Generator
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import anyio

import aiolock
from aiolock.cli.signals import SIGNALS
from aiolock.cli.store import Commands, add_store_options, check_url, ending

if TYPE_CHECKING:
    from aiolock.page import Entrance, Page

_LAST_PORT: Final = 65_535


def add_command(commands: Commands) -> None:
    """Add ``web`` to the command line."""
    parser = commands.add_parser(
        "web",
        help="serve a live page of holders and waiters, for a browser",
        description="Serve a page that shows the locks, their holders and their waiters, as they"
        " change. It prints an address with a key in it, without which the page is refused. The"
        " store is asked only while the page is open.",
    )
    add_store_options(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen at (default: %(default)s)"
    )
    parser.add_argument(
        "--port", type=int, default=8765, help="0 for any that is free (default: %(default)s)"
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        help="a name under which the page is reached, if there is one besides that of this machine",
    )
    parser.add_argument(
        "--may-break",
        action="store_true",
        help="readers of the page may also break locks; on this machine alone",
    )
    parser.set_defaults(run=run, command="web")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    return ending(_web, arguments)


async def _web(arguments: argparse.Namespace) -> int:
    # Imported only here: no other command needs it.
    from aiolock.page import Entrance, web

    check_url(arguments)
    _check_uvicorn()
    with _listening(arguments.host, arguments.port) as sock:
        address, port = sock.getsockname()[:2]
        if arguments.may_break and not ip_address(address).is_loopback:
            raise ValueError(
                "with --may-break the page is for this machine alone, since it is not encrypted."
                f" Leave out --host, and reach it with ssh -L {port}:localhost:{port}; or mount the"
                " page in an application that has TLS and authenticates its users"
            )
        with SIGNALS.end_this_task():
            async with aiolock.connect(arguments.url, prefix=arguments.prefix) as client:
                page = web(
                    client,
                    may_break=(lambda _: True) if arguments.may_break else None,
                    hosts={"localhost", arguments.host, socket.gethostname(), *arguments.name},
                )
                key = secrets.token_urlsafe(24)
                shown = _shown(address)
                print(f"http://{shown}:{port}/#key={key}", "(Ctrl-C ends it)", flush=True)
                await _serve(page, Entrance(page, key), sock)
    return 0


def _check_uvicorn() -> None:
    if importlib.util.find_spec("uvicorn") is None:
        raise ImportError(
            "this needs uvicorn: pip install 'aiolock-redis[web]', or mount the page in an"
            " application of yours"
        )


def _listening(host: str, port: int) -> socket.socket:
    if not 0 <= port <= _LAST_PORT:
        raise ValueError(f"--port must be a number from 0 to {_LAST_PORT}, not {port}")
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family)


def _shown(address: str) -> str:
    """The host to type into a browser; for an address that means all of this machine, its name."""
    if ip_address(address).is_unspecified:
        return socket.gethostname()
    return f"[{address}]" if ":" in address else address


async def _serve(page: Page, entrance: Entrance, sock: socket.socket) -> None:
    """Serve until this task is cancelled."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None]:
            yield  # we handle the signals

    config = uvicorn.Config(
        entrance,
        access_log=False,
        lifespan="off",  # the client is open
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=5,
        ws="none",
    )
    server = Server(config)
    serving = asyncio.create_task(server.serve([sock]))
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        page.end()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([serving])
