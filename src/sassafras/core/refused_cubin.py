"""Unmodified code that nothing can be proved about: its cubin is kept, to be sent with a report."""

from __future__ import annotations

import re
from pathlib import Path

from sassafras.core import Kernel
from sassafras.core.errors import reason
from sassafras.core.files import write_whole


def kept(kernel: Kernel, folder: Path | None = None) -> str:
    """Write the kernel's cubin to `folder` and say where it is, or why it is not.

    Args:
        kernel: the compiler's own code.
        folder: None for the working directory.

    Returns:
        Half a sentence for an error's hint. The file is ``sassafras-refused-NAME-DIGEST.cubin`` with the
        first 40 letters of the kernel's name and 16 digits of the cubin's digest: the same code is written
        once.
    """
    name = re.sub(r"\W+", "_", kernel.name)[:40]
    path = (folder or Path.cwd()) / f"sassafras-refused-{name}-{kernel.digest[:16]}.cubin"
    try:
        write_whole(path, kernel.cubin)
    except OSError as error:
        return f"please report it with the cubin, which cannot be written to {path.parent}: {reason(error)}"
    return f"please report it with the cubin: {path}"
