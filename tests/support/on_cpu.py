"""Run as a program: another program on the CPU, as the tests are run themselves.

Arguments: the module to run, and its own arguments.
"""

from __future__ import annotations

import runpy
import sys

import mlx.core as mx

if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
