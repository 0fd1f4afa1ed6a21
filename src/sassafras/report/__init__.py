"""Output for people: listings of a store, `explain`, the HTML report."""
