"""What the pages promise is there: links resolve, commands and targets exist."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"!?\[[^\]\n]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#+\s+(.*)$", re.M)


def pages() -> list[Path]:
    """Markdown files that belong to the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        found = [ROOT / line for line in listed.stdout.splitlines()]
    else:
        found = [p for p in ROOT.rglob("*.md") if not any(x.startswith(".") for x in p.parts)]
    return sorted(path for path in found if path.is_file())


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def anchor(heading: str) -> str:
    """The fragment under which a heading is linked to."""
    text = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return text.replace(" ", "-")


@pytest.mark.parametrize("page", pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_relative_link_resolves(page: Path) -> None:
    broken = []
    for target in LINK.findall(without_code(page.read_text("utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists():
            broken.append(target)
        elif fragment and file.suffix == ".md":
            anchors = {anchor(h) for h in HEADING.findall(file.read_text("utf-8"))}
            if fragment not in anchors:
                broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_figure_is_introduced_by_words(page: Path) -> None:
    """A picture has a text for those who can't see it, and lies in the repository."""
    for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)", page.read_text("utf-8")):
        assert alt.strip(), f"{target} has no text"
        assert not re.match(r"[a-z]+:", target), f"{target} is loaded from elsewhere"


@pytest.mark.parametrize("page", pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_headings_stand_on_lines_of_their_own(page: Path) -> None:
    """Whoever wraps a page anew may swallow them."""
    text = without_code(page.read_text("utf-8"))
    swallowed = [line for line in text.splitlines() if re.search(r"\S.* #{2,6} ", line)]
    long = [heading for heading in HEADING.findall(text) if len(heading) > 90]
    assert not swallowed + long


def test_make_targets_named_in_pages_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.M))
    missing = {
        f"{page.relative_to(ROOT)}: make {name}"
        for page in pages()
        for name in re.findall(r"`make ([a-z][a-z-]*)", page.read_text("utf-8"))
        if name not in targets
    }
    assert not missing


def test_every_decision_is_listed_once_and_in_order() -> None:
    folder = ROOT / "docs/adr"
    numbers = [path.name[:4] for path in sorted(folder.glob("[0-9]*.md"))]
    assert numbers == [f"{n:04d}" for n in range(1, len(numbers) + 1)]
    index = (folder / "README.md").read_text()
    assert all(f"({path.name})" in index for path in folder.glob("[0-9]*.md"))
