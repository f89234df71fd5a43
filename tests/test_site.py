"""The pages of docs/ and README: their links lead somewhere, their scripts run, and the pages of
agents say all that their code says."""

import dataclasses
import importlib
import os
import re
import shlex
import subprocess
import sys

import pytest

from troupe.agents import AGENTS, find_builder
from troupe.baselines.command import line
from troupe.baselines.settings import SETTINGS

from .pages import DOCS, OF_THE_REPOSITORY, PAGES, ROOT, name_of

pytestmark = OF_THE_REPOSITORY


@pytest.fixture(scope="module")
def site():
    """Imports a module of docs/site: `site("links")`."""
    sys.path.insert(0, str(DOCS / "site"))
    yield importlib.import_module
    sys.path.remove(str(DOCS / "site"))


MESSAGES = {
    "There is no agent": "train nope --env CartPole-v1",
    "needs an extra": "train dqn --env dm_control/cartpole-swingup",
    "Agents that can:": "train td3 --env CartPole-v1 --out runs/a",
    "has no field": "train dqn --env CartPole-v1 --config.rate 3",
    "unrecognized arguments": "train dqn --env CartPole-v1 --rate 3",
    "and jax finds only": "train dqn --env CartPole-v1 --learner-device gpu --out runs/a",
    "which is not installed": "train dqn --env CartPole-v1 --launch threads --out runs/a",
    "is not empty": "train dqn --env CartPole-v1 --out full",
    "is not a run's directory": "resume full",
    "belongs to a new run": "resume full --config.n_step 2",
    "cannot be imported": "check no_such_module:Builder --env CartPole-v1",
}
"""Messages that docs/troubleshooting.md quotes, each with a command that is answered so."""


@pytest.mark.parametrize("message", MESSAGES)
def test_troubleshooting_quotes_what_is_said(message, tmp_path, monkeypatch, capsys):
    assert f"| `{message}` |" in (DOCS / "troubleshooting.md").read_text()
    for package in ("dm_control", "launchpad", "reverb"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert line.main(shlex.split(MESSAGES[message]), SETTINGS) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=name_of
)
def test_links_lead_somewhere_on_the_code_host(page, site):
    assert site("links").broken(ROOT, page) == []


def test_links_that_lead_nowhere_are_found(site, tmp_path):
    links, page = site("links"), tmp_path / "page.md"
    page.write_text("# A b, c\n\n[a](#a-b-c) [b](#b) [c](other.md) [d](https://x.y) ![e](e.png)\n")
    assert links.broken(tmp_path, page) == ["#b", "other.md", "e.png"]


def test_links_are_those_of_the_site(site):
    convert = site("links").convert
    pages = {"changelog.md", "agents/ppo.md", "sweeps.md"}
    assert convert("CHANGELOG.md", "[a](docs/sweeps.md#b)", pages) == "[a](sweeps.md#b)"
    text = "[a](../../CHANGELOG.md) [b](../../agents/ppo) [c](../sweeps.md) [d](https://x.y)"
    made = convert("docs/tutorial/train.md", text, pages)
    assert made == "[a](../changelog.md) [b](../agents/ppo.md) [c](../sweeps.md) [d](https://x.y)"
    with pytest.raises(ValueError, match=r"docs/a\.md links to \.\./setup\.py"):
        convert("docs/a.md", "[a](../setup.py)", pages)


def test_extras_that_are_named_are_there():
    known = re.search(
        r"optional-dependencies\]\n(.*?)\n\[", (ROOT / "pyproject.toml").read_text(), re.DOTALL
    )
    extras = set(re.findall(r"(?m)^([\w-]+) = ", known.group(1)))
    assert {"ray", "docs"} <= extras
    for page in PAGES:
        for named in re.findall(r"(?:\.|troupe)\[([a-z0-9,-]+)\]", page.read_text()):
            assert set(named.split(",")) <= extras, (page, named)


@pytest.mark.parametrize("agent", sorted(AGENTS))
def test_the_page_of_an_agent_says_what_its_code_says(agent, site):
    page = site("agent_pages").page(agent)
    config_class = find_builder(agent).config_class
    for field in dataclasses.fields(config_class):
        assert re.search(rf"\| `{field.name}` \| `\S+` \| [^|]* \| \S+", page), field.name
    assert page.startswith(f"# {agent}\n")
    assert "## Papers\n\n- [" in page
    tuned = [one for one in SETTINGS if one.agent == agent]
    assert all(f"| `{one.env}` | `{agent}` | {one.steps:,} |" in page for one in tuned)


def test_the_matrix_says_what_agents_drive(site):
    tables = site("tables")
    assert tables.drives("td3") == ("Box",)
    assert {"Discrete", "Discrete with a mask", "Box"} <= {*tables.drives("ppo")}
    assert "sqil" in tables.wrapped_by("dqn")
    assert "sqil" not in tables.wrapped_by("ppo")


def test_docstrings_are_read_as_markdown_is(site):
    convert = site("reference").as_restructured_text
    assert (
        convert("`a_` is *b_ times `c\nd`s |e|") == "``a_``\\  is \\*b\\_ times ``c d``\\ s \\|e\\|"
    )
    assert convert("As in:\n\n    x = 1\n") == "As in::\n\n    x = 1\n"
    assert convert("Args:\n  x: y.") == "Args:\n  x: y."


def test_the_agent_of_the_tutorial_has_as_many_lines_as_it_says(pages):
    lines = [one for one in pages("tutorial/agent.md")[0]["small.py"].splitlines() if one.strip()]
    for page in ("tutorial/agent.md", "index.md", "coming.md"):
        assert f"{len(lines)} lines" in " ".join((DOCS / page).read_text().split()), len(lines)


@pytest.mark.long
@pytest.mark.parametrize("page", ["tutorial/train.md", "tutorial/environment.md", "coming.md"])
def test_scripts_run(page, documented, pages, tmp_path):
    """As a user starts them, with small budgets."""
    (script,) = pages(page)[1]
    (documented / "script.py").write_text(
        re.sub(r"num_actor_steps=[\d_]+", "num_actor_steps=300", script)
    )
    command = [sys.executable, str(documented / "script.py")]
    environment = {**os.environ, "XLA_FLAGS": ""}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    assert [*tmp_path.glob("runs/*/result.json")]
