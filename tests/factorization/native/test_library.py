"""A library that cannot be used is named and left alone."""

import _ctypes
from pathlib import Path

import jax
import numpy as np
import pytest

from hamcmc.factorization import native
from hamcmc.factorization.native import build, library
from tests.factorization.native.reference import agree, case, expected, needs_kernel


@pytest.fixture
def load():
    """The check, without its memory."""
    return library.load.__wrapped__


def test_missing(monkeypatch, tmp_path, load):
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "_kernels.so")
    found = load()
    assert not found
    assert "was not built" in found.why_not


@pytest.mark.parametrize("content", [b"", b"no library"])
def test_broken(monkeypatch, tmp_path, load, content):
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "_kernels.so")
    build.LIBRARY.write_bytes(content)
    found = load()
    assert not found
    assert "does not load" in found.why_not


def test_another_library(monkeypatch, tmp_path, load):
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "_kernels.so")
    build.LIBRARY.symlink_to(_ctypes.__file__)
    assert "hamcmc_source" in load().why_not


@needs_kernel
def test_from_other_source(monkeypatch, load):
    monkeypatch.setattr(build, "source_hash", lambda: "0" * 16)
    found = load()
    assert not found
    assert "other source files" in found.why_not


@needs_kernel
def test_a_symbol_that_is_not_there(monkeypatch, load):
    monkeypatch.setattr(library, "TARGETS", ("hamcmc_gradient", "hamcmc_other"))
    assert "hamcmc_other" in load().why_not


@needs_kernel
@pytest.mark.parametrize("name", ["MAJOR", "MINOR"])
def test_for_another_version_of_the_interface(monkeypatch, tmp_path, load, name):
    header = "xla/ffi/api/c_api.h"
    ours = Path(jax.ffi.include_dir(), header).read_text()
    (tmp_path / header).parent.mkdir(parents=True)
    (tmp_path / header).write_text(ours.replace(f"#define XLA_FFI_API_{name} ", f"#define XLA_FFI_API_{name} 9"))
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    found = load()
    assert not found
    assert "of XLA's interface, and jaxlib has" in found.why_not


@needs_kernel
def test_refused_by_jax(monkeypatch, load):
    def refuse(name, capsule, platform):
        raise RuntimeError("no room for it")

    monkeypatch.setattr(jax.ffi, "register_ffi_target", refuse)
    assert "no room for it" in load().why_not


@needs_kernel
def test_it_can_be_loaded_again(load):
    assert load()


def test_it_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("HAMCMC_NATIVE", "0")
    found = native.available()
    assert not found
    assert "HAMCMC_NATIVE=0" in found.why_not
    args = case(0, 8)
    lowered = jax.jit(lambda *args: native.gradient(*args)).lower(*args, 1)  # not one traced before
    assert "hamcmc_gradient" not in lowered.as_text()
    agree(lowered.compile()(*args, np.int32(1)), expected(*args, 1)["gradient"])


def test_the_hash_covers_every_source_file(monkeypatch, tmp_path):
    for path in [*build.FOLDER.glob("*.h"), *build.FOLDER.glob("*.cc")]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = build.source_hash()
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    assert build.source_hash() == before
    (tmp_path / "common.h").write_text("//")
    assert build.source_hash() != before


def test_a_failed_compilation_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "_kernels.so")
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(OSError, match="^false .* failed"):
        build.compile_library("nowhere")
    assert list(tmp_path.iterdir()) == []


def test_a_library_of_the_same_build_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "_kernels.so")
    compiler = tmp_path / "compiler"  # writes what it was called with
    compiler.write_text('#!/bin/sh\nfor last; do :; done; echo "$@" > "$last"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))

    def compile_with(flags: str) -> str:
        monkeypatch.setenv("CXXFLAGS", flags)
        build.compile_library(jax.ffi.include_dir())
        return build.LIBRARY.read_text()

    first = compile_with("-O1")
    build.LIBRARY.write_text(first + "kept")
    assert compile_with("-O1") == first + "kept"
    assert "kept" not in compile_with("-O2")
