"""Two functions or two cubins timed interleaved beside an A/A control."""
