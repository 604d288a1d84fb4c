"""Compile the C++ kernels while the package is built. Without a compiler, the package uses XLA's form of them.

Environment: CXX names the compiler; CXXFLAGS are added last. A build for other machines sets the oldest processor that
it must run on, as in ``CXXFLAGS=-march=x86-64-v2 pip wheel .``; the default is x86-64-v3 if this machine has it.
"""

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileKernels(BuildHookInterface):
    """Makes ``hamcmc/factorization/native/_kernels.so`` and marks the wheel as built for this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects the files of a wheel or an editable install."""
        # Run the file itself: the package and its dependencies are not installed yet.
        build = runpy.run_path(str(Path(self.root) / "src" / "hamcmc" / "factorization" / "native" / "build.py"))
        try:
            import jax

            build["compile_library"](jax.ffi.include_dir())
        except (ImportError, OSError) as error:
            self.app.display_warning(
                f"hamcmc is built without its C++ kernels, so factorization will be slower: {error}"
            )
            return
        build_data["artifacts"].append("src/hamcmc/factorization/native/_kernels.so")  # git ignores it
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"  # the library does not depend on Python's version
