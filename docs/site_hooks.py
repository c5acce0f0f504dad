"""Hooks of `make docs` for links that leave docs/.

A page links to source files of the repository, such as ../configs/x.yaml. The site gets a copy of
each linked file under source/, shown as text. A link to a folder becomes plain text.
"""

import os
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")


def _outside(page_path: str, target: str) -> Path | None:
    """Return the file or folder outside of docs/ that a page links to, or None."""
    path = Path(os.path.normpath((DOCS / page_path).parent / target))
    return None if path.is_relative_to(DOCS) else path


def _copy_name(path: Path) -> str:
    return f"source/{path.relative_to(ROOT).as_posix()}.txt"


def on_files(files, config):
    """Add the linked source files to the site."""
    for page in [each for each in files if each.src_path.endswith(".md")]:
        for _, target, _ in LINK.findall((DOCS / page.src_path).read_text()):
            path = _outside(page.src_path, target)
            if path and path.is_file() and _copy_name(path) not in files.src_uris:
                files.append(File.generated(config, _copy_name(path), content=path.read_text()))
    return files


def on_page_markdown(markdown, page, config, files):
    """Point the links at the copies. A missing file stays as it is, and fails the build."""

    def link(found: re.Match) -> str:
        path = _outside(page.file.src_path, found[2])
        if path is None or not path.exists():
            return found[0]
        if path.is_dir():
            return found[1]
        start = (DOCS / page.file.src_path).parent
        return f"[{found[1]}]({os.path.relpath(DOCS / _copy_name(path), start)})"

    return LINK.sub(link, markdown)
