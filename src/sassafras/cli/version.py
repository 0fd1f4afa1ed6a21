"""``sassafras version``"""

from __future__ import annotations


def command() -> None:
    """Print the version."""
    from sassafras import __version__

    print(__version__)
