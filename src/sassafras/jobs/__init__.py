"""One search run: opened, searched, confirmed, its result."""
