"""Django's application: the checks of the settings, and the commands of manage.py."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from django.core.management import call_command, execute_from_command_line, get_commands
from django.core.management.base import CommandError
from django.test import override_settings

import aiolock.sync
from tests.support.webapps.django import configure

configure()

pytestmark = pytest.mark.one_loop


@pytest.fixture(autouse=True)
def store(tmp_path: Path) -> Iterator[str]:
    """The application is installed, with a store of files."""
    url = f"sqlite:///{tmp_path}/locks.db"
    settings: dict[str, Any] = {
        "INSTALLED_APPS": ["aiolock.integrations.django"],
        "AIOLOCK": {"target": url, "prefix": "shop"},
    }
    clear_commands: Any = get_commands
    clear_commands.cache_clear()
    with override_settings(**settings):
        yield url
    clear_commands.cache_clear()


def found(*, deploy: bool = False) -> list[checks.CheckMessage]:
    """The messages of ``manage.py check`` about aiolock."""
    return checks.run_checks(tags=["aiolock"], include_deployment_checks=deploy)


@pytest.mark.parametrize(
    ("settings", "id_", "text"),
    [
        (None, "E001", 'must be {"target": URL'),
        ("redis://x", "E001", 'must be {"target": URL'),
        ({"ttl": 3}, "E001", 'must be {"target": URL'),
        ({"target": "redsi://:secret@x"}, "E002", "redis://"),
        ({"target": "redis://localhost", "ttl": -1}, "E002", "ttl"),
        ({"target": "redis://localhost", "patience": 1}, "E002", "patience"),
        ({"target": 7}, "E002", "not to a int"),
    ],
)
def test_check_of_wrong_settings_is_an_error_with_a_hint(
    settings: Any, id_: str, text: str
) -> None:
    """Without I/O, and without the password."""
    with override_settings(AIOLOCK=settings):
        (message,) = found()
    assert message.level == checks.ERROR
    assert message.id == f"aiolock.{id_}"
    assert text in message.msg
    assert message.hint
    assert "secret" not in str(message)


def test_check_of_right_settings_finds_nothing() -> None:
    """No server need be there."""
    assert found(deploy=True) == []
    with override_settings(AIOLOCK={"target": "redis://127.0.0.1:1/0"}):
        assert found(deploy=True) == []


def test_check_warns_of_memory_in_a_deployment() -> None:
    """Only there: in development it is what one wants."""
    with override_settings(AIOLOCK={"target": "memory://"}):
        assert found() == []
        assert [message.id for message in found(deploy=True)] == ["aiolock.W001"]


def test_check_of_the_middleware_needs_its_settings() -> None:
    """An error before the first request."""
    ours = "aiolock.integrations.django.IdempotencyMiddleware"
    with override_settings(MIDDLEWARE=[ours]):
        assert [message.id for message in found()] == ["aiolock.E003"]
    keys = {"application": "shop", "remember": 60, "who": "builtins.str"}
    with override_settings(MIDDLEWARE=[ours], AIOLOCK_IDEMPOTENCY=keys):
        assert found() == []


def manage(*arguments: str) -> int:
    """The exit code of manage.py."""
    with pytest.raises(SystemExit) as ended:
        execute_from_command_line(["/shop/manage.py", "aiolock", *arguments])
    code = ended.value.code
    assert isinstance(code, int)
    return code


def test_manage_command_lists_and_breaks_locks_of_the_settings(
    store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its store and prefix, and the codes of aiolock's own commands."""
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "shop.settings")  # so does --settings
    before = dict(os.environ)
    with aiolock.sync.connect(store, prefix="shop") as locks:
        lease = locks.lock("order:7").acquire()
        assert manage("ls", "--json", "--settings=shop.settings") == 0
        assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["order:7"]
        assert manage("break", "--yes", "order:7") == 0
        assert lease.lost.wait(60)
        assert manage("show", "order:7") == 1
        assert manage("ls", "--prefix", "other", "--json") == 0
        assert capsys.readouterr().out.endswith("[]\n")
    assert dict(os.environ) == before


def test_manage_command_runs_a_program_with_all_its_arguments(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Those after ``--`` are not ours."""
    code = "import sys; print(sys.argv[1:])"
    assert manage("run", "nightly", "--", sys.executable, "-c", code, "--settings=x") == 0
    assert capfd.readouterr().out == "['--settings=x']\n"


def test_manage_command_leaves_the_environment_of_the_process_as_it_is(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it runs gets no URL of the settings, which may have a password; nor do other threads."""
    monkeypatch.setenv("AIOLOCK_URL", "redis://of-the-environment")
    monkeypatch.delenv("AIOLOCK_PREFIX", raising=False)
    names = ("AIOLOCK_URL", "AIOLOCK_PREFIX", "AIOLOCK_NAME")
    code = f"import os; print(*map(os.environ.get, {names}))"
    assert manage("run", "nightly", "--", sys.executable, "-c", code) == 0
    assert capfd.readouterr().out == "redis://of-the-environment None nightly\n"


def test_manage_help_is_that_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """As it is called here."""
    assert manage("--help") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: manage.py aiolock")
    execute_from_command_line(["/shop/manage.py", "help", "aiolock"])
    assert capsys.readouterr().out == shown


def test_manage_command_without_a_url_in_the_settings_says_what_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In a line."""
    with override_settings(AIOLOCK={}):
        assert manage("ls") == 1
        assert capsys.readouterr().err == 'settings.AIOLOCK must be {"target": URL, ...}\n'
    with override_settings(AIOLOCK={"target": object()}):
        assert manage("ls") == 2
        assert "use --url" in capsys.readouterr().err


def test_call_command_gives_the_output_and_raises_for_other_codes() -> None:
    """As for all commands of Django."""
    output = io.StringIO()
    call_command("aiolock", "ls", "--json", stdout=output)
    assert output.getvalue() == "[]\n"
    with pytest.raises(CommandError, match="exit code 1") as caught:
        call_command("aiolock", "show", "nobody", stdout=output)
    assert caught.value.returncode == 1


def test_call_command_with_arguments_that_are_wrong_raises_and_does_not_exit() -> None:
    """A program that calls it goes on, and gets the text; with ``--help`` without an error."""
    output, errors = io.StringIO(), io.StringIO()
    with pytest.raises(CommandError, match="exit code 2") as caught:
        call_command("aiolock", "lss", stderr=errors)
    assert caught.value.returncode == 2
    assert "invalid choice: 'lss'" in errors.getvalue()
    call_command("aiolock", "ls", "--help", stdout=output)
    assert output.getvalue().startswith("usage: aiolock ls")


async def test_call_command_in_a_thread_works_but_runs_no_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As in a view: only the main thread gets signals."""
    output = io.StringIO()
    await asyncio.to_thread(call_command, "aiolock", "ls", "--json", stdout=output)
    assert output.getvalue() == "[]\n"
    with pytest.raises(CommandError, match="exit code 2"):
        await asyncio.to_thread(call_command, "aiolock", "run", "a", "--", "true")
    assert "in the main thread only" in capsys.readouterr().err
