"""Links between pages, which lead to files of the repository, as links of the site."""

from __future__ import annotations

import pathlib
import posixpath
import re
from collections.abc import Collection

OUTSIDE = {"CHANGELOG.md": "changelog.md", "README.md": "index.md"}
"""Files outside of docs/ to pages."""
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]*)(#[^)\s]*)?\)")
_COMMANDS = ("troupe ", "pip ", "python ", "make ", "export ", "ray ", "sbatch ", "git ")


def page_of(path: str) -> str:
    """The page that a file of the repository is; for an agent's folder, that of the agent."""
    return OUTSIDE.get(path) or (
        path.removeprefix("docs/") if path[:5] == "docs/" else f"{path}.md"
    )


def convert(path: str, text: str, pages: Collection[str]) -> str:
    """A Markdown file of the repository as the site has it.

    Args:
      path: its path in the repository.
      text: of the file.
      pages: paths of all pages of the site and their pictures.

    Raises:
      ValueError: naming a link that leads to a file which is no page.
    """
    here, page_folder = posixpath.dirname(path), posixpath.dirname(page_of(path))

    def led(match: re.Match[str]) -> str:
        before, target, anchor = match.group(1), match.group(2), match.group(3) or ""
        if not target or ":" in target:
            return match.group()
        found = page_of(posixpath.normpath(posixpath.join(here, target)))
        if found not in pages:
            raise ValueError(f"{path} links to {target}, which is no page of the site.")
        return f"{before}{posixpath.relpath(found, page_folder or '.')}{anchor})"

    return _language(_LINK.sub(led, text))


def _language(text: str) -> str:
    """Names the language of blocks of commands, which have none."""

    def named(match: re.Match[str]) -> str:
        language, code = match.groups()
        if not language and code.startswith(_COMMANDS):
            language = "bash"
        return f"```{language}\n{code}```"

    return re.sub(r"(?ms)^```(\w*)\n(.*?)^```$", named, text)


def broken(root: pathlib.Path, page: pathlib.Path) -> list[str]:
    """The links of a page that lead to no file of the repository, or to no heading of one."""
    found = []
    for _, target, anchor in _LINK.findall(_without_code(page.read_text())):
        path = page.parent / target if target else page
        if ":" in target:
            continue
        is_missing = not path.exists() or root not in path.resolve().parents
        if is_missing or (anchor and anchor[1:] not in anchors(path.read_text())):
            found.append(target + anchor)
    return found


def anchors(text: str) -> set[str]:
    """The anchors that the code host gives to headings."""
    headings = re.findall(r"(?m)^#+ (.*)$", _without_code(text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _without_code(text: str) -> str:
    return re.sub(r"(?ms)^```.*?^```$", "", text)
