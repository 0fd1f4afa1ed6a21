"""Runs a Python file with Triton on a driver that launches nothing (``tests/deploy/boundary.py``)."""

import runpy
import sys

from triton.runtime import driver

from tests.deploy.boundary import Driver

if __name__ == "__main__":
    driver.set_active(Driver())
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
