"""The commands of README and of the pages of docs/ are ones of the command line; those of the
tutorial run. That all the others run is in test_commands_run.py."""

import argparse
import importlib
import runpy
import sys

import pytest

from troupe.baselines.command import asking, config_file, line, parser
from troupe.baselines.settings import SETTINGS

from .pages import DOCS, OF_THE_REPOSITORY, PAGES, blocks, commands, name_of

QUICK = {"min_replay_size": "16", "batch_size": "4", "samples_per_insert": "2"}
TUTORIAL = ("train", "environment", "agent")

pytestmark = OF_THE_REPOSITORY


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
