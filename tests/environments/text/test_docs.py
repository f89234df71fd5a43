"""docs/tokens.md: its code runs, and the options that it names are there."""

import importlib.util
import inspect
import re

from troupe import environments
from troupe.environments import text
from troupe.environments.text import ids, layout, verifiers


def test_its_code_runs(documented, pages, capsys):
    _, scripts = pages("tokens.md")
    scope = {}
    for script in scripts:
        if "reasoning_gym" in script and not importlib.util.find_spec("reasoning_gym"):
            continue
        exec(compile(script, "tokens.md", "exec"), scope)
    shown = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\d+\+\d+=", shown[0])
    assert shown[1] == "  0.00    (3 times)"
    assert re.fullmatch(r"  1\.00  \d+", shown[2])
    assert scope["vector"].reset().observation["prompt"].shape == (4, 5)


def test_its_figures_and_options_are_those_that_there_are(pages):
    page = (pages.__globals__["DOCS"] / "tokens.md").read_text()
    for key in ("answers", "tokenizer", "grammar", "time_limit", "prompt_length"):
        assert f"`{key}`" in page
    assert f"the longest of {layout._SAMPLES + layout._SAMPLES_HELD_OUT} samples" in page
    assert f"| {ids.TIME_LIMIT:g}; of `reverse`" in page
    assert f"more than {verifiers.MOST_FAILURES} and one\nfor each hundred" in page
    for name, kind in text.TASKS.items():
        assert f"`tokens:{name}`" in page
        for parameter in inspect.signature(kind).parameters.values():
            default = f" ({parameter.default}" if parameter.name != "partial" else " true"
            assert f"`{parameter.name}{'`' if default[1] == '(' else ''}{default}" in page


def test_its_ids_can_be_made(documented, pages):
    page = (pages.__globals__["DOCS"] / "tokens.md").read_text()
    found = {one for one in re.findall(r"`(tokens:[\w/:?=&]+)`", page) if "NAME" not in one}
    assert len(found) == 7
    for id in found - {"tokens:MODULE:FUNCTION"}:
        if "reasoning_gym" not in id or importlib.util.find_spec("reasoning_gym"):
            environments.make(id, seed=0, num_envs=1).close()
