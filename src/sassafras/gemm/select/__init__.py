"""Which configuration serves a problem: measured tables, the cost model and trained selectors."""
