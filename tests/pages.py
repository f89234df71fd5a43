"""README and the pages of docs/: their blocks of code and their commands."""

import pathlib
import re
import shlex

import pytest

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [page for page in (*sorted(DOCS.rglob("*.md")), ROOT / "README.md") if page.exists()]
NEW = ("choosing", "coming", "index", "platforms", "troubleshooting", "tutorial/")
"""Pages whose commands in the midst of sentences are read too."""
OF_THE_REPOSITORY = pytest.mark.skipif(
    not (ROOT / "README.md").exists(), reason="of the repository"
)


def name_of(page):
    return str(page.relative_to(ROOT))


def blocks(text, language=""):
    """The blocks of code of a page that are of a language."""
    found = re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", text)
    return [code for name, code in found if name == language]


def commands(page):
    """The package's commands of a page as lists of words: those in blocks, and in new pages all."""
    text = page.read_text()
    lines = [one for block in blocks(text) for one in block.replace("\\\n", " ").splitlines()]
    if str(page.relative_to(ROOT)).startswith(tuple(f"docs/{name}" for name in NEW)):
        prose = re.sub(r"(?ms)^```.*?^```$", "", text)
        lines += [one for one in re.findall(r"`([^`]+)`", prose) if len(one.split()) > 2]
    for one in lines:
        if one.removeprefix("$ ").startswith(("troupe ", "python -m troupe")):
            words = shlex.split(one.removeprefix("$ "), comments=True)
            yield words[: words.index(">")] if ">" in words else words
