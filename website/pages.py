"""The site's pages from the repository's: README.md and its like become pages, and links fit.

Links in Markdown lead from file to file in the repository. On the site a link to a page leads to
that page. A link to any other file of the repository is only its text, unless `repo_url` is set.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "DESIGN.md": "design.md",
    "SKIPPED.md": "skipped.md",
}
EMPTY_HEAD = re.compile(r"<thead>\s*<tr>\s*(?:<th[^>]*></th>\s*)+</tr>\s*</thead>")
FILES = {site: repository for repository, site in ROOT_PAGES.items()}
CODE_OR_LINK = re.compile(
    r"```.*?```|`[^`\n]+`(?!\])|\[((?:`[^`]*`|[^\[\]])*)\]\(([^)\s]+)\)", re.S
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for repository, site in ROOT_PAGES.items():
        files.append(File.generated(config, site, abs_src_path=str(ROOT / repository)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    site = page.file.src_uri
    here = posixpath.dirname(FILES.get(site, f"docs/{site}"))

    def rewrite(found: re.Match[str]) -> str:
        text, link = found[1], found[2]
        if link is None or re.match(r"[a-z]+:|#", link):
            return found[0]
        path, _, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(here, path))
        on_site = ROOT_PAGES.get(target, target.removeprefix("docs/"))
        if files.get_file_from_path(on_site) is None and (ROOT / target).exists():
            return f"[{text}]({config.repo_url}/blob/main/{target})" if config.repo_url else text
        relative = posixpath.relpath(on_site, posixpath.dirname(site))
        return f"[{text}]({relative}{'#' + anchor if anchor else ''})"

    return CODE_OR_LINK.sub(rewrite, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A table whose columns have no names has no heads: a screen reader would read empty ones."""
    return re.sub(r"<th[^>]*></th>", "<td></td>", EMPTY_HEAD.sub("", html))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The theme's search is a dialog without a name."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
