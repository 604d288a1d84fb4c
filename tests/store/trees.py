"""Directories compared by what is in them."""

from pathlib import Path


def tree(path: Path) -> dict[str, bytes]:
    """Every file below a directory with its bytes."""
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}
