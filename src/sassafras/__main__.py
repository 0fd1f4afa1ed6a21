"""``python -m sassafras``: the same as the ``sassafras`` program."""

from sassafras.cli import main

if __name__ == "__main__":
    main()
