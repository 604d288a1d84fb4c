"""Every Python sample in the README and the docs runs, in order, as one program per page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [p for p in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if "```python" in p.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_samples_run(page, tmp_path, monkeypatch, optimised):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "sample"}
    for match in re.finditer(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        line = page.read_text()[: match.start()].count("\n") + 1
        exec(compile("\n" * line + match[1], str(page), "exec"), names)


def test_links_lead_somewhere():
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page}: {target}"
