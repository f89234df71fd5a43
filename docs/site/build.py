"""Builds the site: `python docs/site/build.py build/docs`.

The pages are those of docs/ and the changelog, as they are, and pages made from the package: one
for each agent, tables, and the reference. Sphinx writes them, with a search over all.
"""

from __future__ import annotations

import pathlib
import shutil
import sys

import agent_pages
import links
import reference
import tables
from sphinx.cmd.build import build_main

ROOT = pathlib.Path(__file__).parents[2]
DOCS, SITE = ROOT / "docs", ROOT / "docs" / "site"

CONTENTS = {
    "Tutorial": [
        f"tutorial/{name}" for name in ("install", "train", "environment", "agent", "launch")
    ],
    "First questions": ["choosing", "coming", "troubleshooting", "platforms"],
    "Agents and environments": [
        "agents/index",
        "matrix",
        "environments",
        "external",
        "tokens",
        "agents",
    ],
    "Runs": ["python", "offline", "sweeps", "results", "returns/results"],
    "Scale": ["scales", "launching", "compiled", "clusters", "clusters-measured"],
    "Partitioner": ["partitioning", "automatic", "pipelines", "rules", "simulator"],
    "Reference": ["reference/index", "changelog"],
}
"""The pages by part, in order."""


def assemble(folder: pathlib.Path) -> None:
    """Writes the sources of all pages into a folder."""
    written = [*sorted(DOCS.rglob("*.md")), ROOT / "CHANGELOG.md"]
    pictures = sorted(DOCS.rglob("*.png"))
    paths = {path: str(path.relative_to(ROOT)) for path in [*written, *pictures]}
    pages = dict([*agent_pages.pages(), *tables.pages(), *reference.pages()])
    known = {*pages, *map(links.page_of, paths.values())}
    made = [*pages]
    for path in written:
        text = links.convert(paths[path], path.read_text(), known)
        pages[links.page_of(paths[path])] = text
    pages["index.md"] += "".join(map(_contents, CONTENTS))
    for part in ("agents", "reference"):
        names = [name.partition("/")[2] for name in made if name.startswith(f"{part}/")]
        pages[f"{part}/index.md"] += _tree("", [name for name in names if name != "index.md"])
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for picture in pictures:
        shutil.copy(picture, folder / links.page_of(paths[picture]))


def _contents(part: str) -> str:
    return _tree(part, CONTENTS[part])


def _tree(caption: str, pages: list[str]) -> str:
    """A part of the contents, which the side of every page shows."""
    options = f":caption: {caption}\n" if caption else ""
    names = [page.removesuffix(".md").removesuffix(".rst") for page in pages]
    return "\n".join(["", "```{toctree}", ":hidden:", options, *names, "```", ""])


def main(out: str) -> int:
    """Writes the site into a folder; returns Sphinx's exit code, which a warning makes 1."""
    source = pathlib.Path(f"{out}-source")
    assemble(source)
    shutil.rmtree(out, ignore_errors=True)
    flags = ["--builder", "html", "--quiet", "--fail-on-warning", "--keep-going"]
    code = build_main([*flags, "--conf-dir", str(SITE), str(source), out])
    if not code:
        print(pathlib.Path(out, "index.html"))
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
