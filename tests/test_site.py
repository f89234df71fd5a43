"""The pages of docs/ and README: their links lead somewhere, their commands are ones of the command
line, their code runs, and the pages of agents say all that their code says."""

import argparse
import dataclasses
import importlib
import os
import pathlib
import re
import runpy
import shlex
import subprocess
import sys

import pytest

from troupe.agents import AGENTS, find_builder
from troupe.baselines.command import asking, config_file, line, parser
from troupe.baselines.settings import SETTINGS

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]
NEW = ("choosing", "coming", "index", "platforms", "troubleshooting", "tutorial/")
"""Pages whose commands in the midst of sentences are read too."""
QUICK = {"min_replay_size": "16", "batch_size": "4", "samples_per_insert": "2"}
TUTORIAL = ("train", "environment", "agent")

pytestmark = pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="of the repository")


@pytest.fixture(scope="module")
def site():
    """Imports a module of docs/site: `site("links")`."""
    sys.path.insert(0, str(DOCS / "site"))
    yield importlib.import_module
    sys.path.remove(str(DOCS / "site"))


def name_of(page):
    return str(page.relative_to(ROOT))


def blocks(text, language=""):
    """The blocks of code of a page that are of a language."""
    found = re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", text)
    return [code for name, code in found if name == language]


def commands(page):
    """The commands of a page as lists of words: those in blocks, and in new pages all others."""
    text = page.read_text()
    lines = [one for block in blocks(text) for one in block.replace("\\\n", " ").splitlines()]
    if str(page.relative_to(ROOT)).startswith(tuple(f"docs/{name}" for name in NEW)):
        prose = re.sub(r"(?ms)^```.*?^```$", "", text)
        lines += [one for one in re.findall(r"`([^`]+)`", prose) if len(one.split()) > 2]
    for one in lines:
        if one.removeprefix("$ ").startswith(("troupe ", "python -m ")):
            words = shlex.split(one.removeprefix("$ "), comments=True)
            yield words[: words.index(">")] if ">" in words else words


@pytest.fixture
def parse(documented, monkeypatch):
    """Has commands parsed, and the agent's config made, and nothing run."""

    def add(self, name, summary, command):
        def look(options, settings):
            if name in ("train", "check", "deploy", "plan", "graph"):
                several = {key for key, value in options.overrides.items() if "," in str(value)}
                tuned = asking.tuned_for(options, settings)
                numbers = {key: one for key, one in options.overrides.items() if key not in several}
                options.overrides = numbers
                asking.recipe(options, tuned).builder()
            return 0

        return original(self, name, summary, look)

    original = parser.Commands.add
    monkeypatch.setattr(parser.Commands, "add", add)
    monkeypatch.setattr(config_file, "read", lambda path: {})

    class Parsed(Exception):
        pass

    def of_module(module, arguments):
        """Has the module parse its arguments, as `python -m` does."""
        monkeypatch.setattr(sys, "argv", [module, *arguments])
        known = argparse.ArgumentParser.parse_known_args

        def parse_args(self, *given, **named):
            assert not known(self, *given, **named)[1]
            raise Parsed

        def parse_known_args(self, *given, **named):
            known(self, *given, **named)
            raise Parsed

        with monkeypatch.context() as patched:
            # What is run may have been imported by another test, which is warned of.
            is_package = hasattr(importlib.import_module(module), "__path__")
            ran = f"{module}.__main__" if is_package else module
            patched.delitem(sys.modules, ran, raising=False)
            patched.setattr(argparse.ArgumentParser, "parse_args", parse_args)
            patched.setattr(argparse.ArgumentParser, "parse_known_args", parse_known_args)
            with pytest.raises(Parsed):
                runpy.run_module(module, run_name="__main__", alter_sys=True)

    def check(words):
        if words[0] == "python":
            of_module(words[2], words[3:])
        elif "--help" in words:
            with pytest.raises(SystemExit) as ended:
                line.main(words[1:], SETTINGS)
            assert not ended.value.code
        else:
            assert line.main(words[1:], SETTINGS) == 0, words

    return check


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_are_ones_of_the_command_line(page, parse, capsys):
    for words in commands(page):
        if words[0] == "python" and not words[2].startswith("troupe"):
            continue
        try:
            parse(words)
        except AssertionError:
            pytest.fail(f"{' '.join(words)}: {capsys.readouterr().err}")


def test_a_wrong_command_is_found(parse, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 1\n```\n\n```\ntroupe train dqn --env A --config.rate 3 > a\n```\n"
    )
    assert blocks(page.read_text()) == ["troupe train dqn --env A --config.rate 3 > a\n"]
    with pytest.raises(AssertionError):
        parse(["troupe", "train", "dqn", "--env", "CartPole-v1", "--config.rate", "3"])
    with pytest.raises(AssertionError):
        parse(["troupe", "train", "dqn", "--environment", "CartPole-v1"])


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


@pytest.mark.long
def test_the_tutorial_runs(documented, tmp_path, monkeypatch, capsys):
    """Its commands in order, with small budgets; those of other launches are tested as such."""
    monkeypatch.chdir(documented)
    ran = []
    for name in TUTORIAL:
        for words in commands(DOCS / "tutorial" / f"{name}.md"):
            asked = [str(tmp_path / one) if one.startswith("runs/") else one for one in words[1:]]
            if {"--seeds", "--launch", "--help", "DIR"} & {*asked}:
                continue
            if asked[0] == "train":
                given = {one.removeprefix("--config.") for one in asked}
                asked += ["--steps", "300", "--evaluate-every", "150", "--evaluation-episodes", "1"]
                for field in QUICK.keys() - given:
                    asked += [f"--config.{field}", QUICK[field]]
                if "--out" not in asked:
                    asked += ["--out", str(tmp_path / f"{len(ran)}")]
            asked = [
                {"60000": "400", "curve.png": str(tmp_path / "a.png")}.get(w, w) for w in asked
            ]
            assert line.main(asked, SETTINGS) == 0, (asked, capsys.readouterr().err)
            ran.append(asked[0])
    assert ran.count("train") >= 5
    assert {"evaluate", "resume", "plot", "check"} <= {*ran}


def trained():
    """The arguments of `troupe train` in all pages, each once, but those that need another machine,
    files of other runs, or another launch than in one process and compiled."""
    needs = (
        "--help",
        "--address",
        "--data",
        "--from",
        "--plan",
        "--config-file",
        "--learner-hosts",
    )
    elsewhere = ("external:", "/models/", "processes", "threads", "ray", "gpu", "DIR")
    pages = [page for page in PAGES if page.exists()]
    every = [words[2:] for page in pages for words in commands(page) if words[1] == "train"]
    return sorted(
        {
            " ".join(asked)
            for asked in every
            if not any(one in needs or one.startswith(elsewhere) for one in asked)
        }
    )


@pytest.mark.skipif(not os.environ.get("TROUPE_FULL"), reason="minutes; set TROUPE_FULL=1")
@pytest.mark.parametrize("command", trained())
def test_what_pages_train_is_trained(command, documented, tmp_path, monkeypatch, capsys):
    """With small budgets, to its end."""
    monkeypatch.chdir(documented)
    asked = shlex.split(command)
    fields = {one.name for one in dataclasses.fields(find_builder(asked[0]).config_class)}
    small = {**QUICK, "batch_size": "16", "random_steps": "16", "supervised_steps": "4"}
    for name in sorted(small.keys() & fields):
        flag = f"--config.{name}"
        if flag in asked:
            asked[asked.index(flag) + 1] = small[name]
        else:
            asked += [flag, small[name]]
    budget = ["--steps", "300", "--evaluate-every", "300", "--evaluation-episodes", "1"]
    asked += [*budget, "--final-evaluation-episodes", "1", "--out", str(tmp_path / "run")]
    assert line.main(["train", *asked], SETTINGS) == 0, (asked, capsys.readouterr().err)
