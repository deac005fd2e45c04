"""The files for the host: workflows, forms, the hooks before a commit; by the tools for them.

They cannot run here. What can be checked is that they are what the host takes, that nothing in them
is a known weakness, and that what they call is there.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema import main as check_jsonschema  # type: ignore[import-untyped]  # has no types
from click.testing import CliRunner

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = [GITHUB / "ISSUE_TEMPLATE" / name for name in ("bug.yml", "feature.yml")]
SCHEMAS = {
    "github-workflows": WORKFLOWS,
    "github-issue-forms": FORMS,
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "dependabot": [GITHUB / "dependabot.yml"],
}
BIN = Path(sys.executable).parent

pytestmark = pytest.mark.one_loop


def read(path: Path) -> Any:
    """A file; ``on`` is a word in it, and not true."""
    return yaml.safe_load(re.sub(r"^on:", "'on':", path.read_text("utf-8"), flags=re.MULTILINE))


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each step of each job."""
    for path in WORKFLOWS:
        for name, job in read(path)["jobs"].items():
            for step in job["steps"]:
                yield f"{path.stem}.{name}", step


def passes(*command: str | Path) -> str:
    """Run a tool that must find nothing; returns its output."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_for_the_host_match_its_schema(schema: str) -> None:
    """Those that the host publishes, as they come with the tool: nothing is loaded."""
    files = SCHEMAS[schema]
    assert files
    # In this process: most of its time is the import.
    options = ("--builtin-schema", f"vendor.{schema}", *map(str, files))
    done = CliRunner().invoke(check_jsonschema, options)
    assert done.exit_code == 0, done.output


def test_workflows_have_no_known_weakness() -> None:
    """Actions by their commit, no more rights than needed, no text of strangers in a script."""
    passes(BIN / "zizmor", "--offline", "--no-progress", "--quiet", GITHUB)


def test_actions_are_pinned_to_a_commit_with_its_version_beside() -> None:
    """So that what runs is what was looked at; one action has one commit everywhere."""
    found = set[tuple[str, str]]()
    for path in WORKFLOWS:
        for line in path.read_text("utf-8").splitlines():
            if "uses:" in line:
                match = re.search(r"uses: ([\w./-]+)@([0-9a-f]{40}) # v[\d.]+$", line)
                assert match, line
                found.add((match[1], match[2]))
    assert len(found) == len({action for action, _ in found})


def test_jobs_have_a_time_limit_and_read_only_rights_by_default() -> None:
    """Whatever hangs ends, and whatever needs more says what it needs."""
    for path in WORKFLOWS:
        workflow = read(path)
        assert workflow["permissions"] == {"contents": "read"}
        assert all("timeout-minutes" in job for job in workflow["jobs"].values())


def test_tests_run_on_each_python_of_the_classifiers() -> None:
    """No more and no fewer than the package says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    prefix = "Programming Language :: Python :: 3."
    said = ["3." + each[len(prefix) :] for each in project["classifiers"] if prefix in each]
    matrix = read(GITHUB / "workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == said


def test_commands_of_the_workflows_exist() -> None:
    """Targets of make, scripts of ours, and folders of tests."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    called = dict[str, str]()
    for where, step in steps():
        for line in step.get("run", "").splitlines():
            called[line] = where
    assert len(called) > 5
    for line in called:
        if found := re.match(r"make ([a-z-]+)", line):
            assert found[1] in targets
        for path in re.findall(r"(?<![\w/])(?:\.ci|tests)/[\w./-]+", line):
            assert (ROOT / path).exists(), line


def test_form_for_faults_asks_for_the_report_that_the_command_prints() -> None:
    """So that nobody has to ask again."""
    fields = {each.get("id"): each for each in read(FORMS[0])["body"]}
    assert "`aiolock check --report`" in fields["report"]["attributes"]["label"]
    assert fields["report"]["validations"]["required"]


def test_hooks_before_a_commit_run_the_tools_of_make_lint() -> None:
    """The same programs, so both say the same."""
    (repo,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repo["repo"] == "local"
    for hook in repo["hooks"]:
        program, *arguments = hook["entry"].split()
        assert program.startswith(".venv/bin/")
        assert hook["language"] == "system"
        for each in arguments:
            assert not each.startswith("tests/") or (ROOT / each).exists()


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], str]:
    """The function of `.ci/release_notes.py`."""
    monkeypatch.syspath_prepend(ROOT / ".ci")
    function: Callable[[str, str, str], str] = importlib.import_module("release_notes").notes
    return function


NEW = '__version__ = "1.2.0"'
LOG = "# Changelog\n\n## 1.2.0 (2027-01-02)\n\nFor all.\n\n- b\n\n## 1.1.0 (2026-12-01)\n\n- a\n"


def test_release_notes_are_the_section_of_the_tag(notes: Callable[[str, str, str], str]) -> None:
    """Up to the next one."""
    assert notes("v1.2.0", LOG, NEW) == "For all.\n\n- b\n"


@pytest.mark.parametrize(
    ("tag", "log", "error"),
    [
        ("v1.2.1", LOG, "the tag is v1.2.1, and __version__ .* is 1.2.0"),
        ("v1.2.0", LOG.replace("## 1.2.0", "## 1.2.9"), "has no section '## 1.2.0"),
        ("v1.2.0", LOG.replace("2027-01-02", "unreleased"), "has no date, but .unreleased"),
    ],
)
def test_release_notes_refuse_a_release_that_does_not_fit(
    notes: Callable[[str, str, str], str], tag: str, log: str, error: str
) -> None:
    """The tag, the version and the changelog must agree before anything is published."""
    with pytest.raises(ValueError, match=error):
        notes(tag, log, NEW)
