"""``python -m sassafras``: the same as the ``sassafras`` program."""

from .cli import main

if __name__ == "__main__":
    main()
