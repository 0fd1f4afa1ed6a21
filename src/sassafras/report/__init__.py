"""What a store or a search holds, for people: listings, `explain`, the HTML report."""
