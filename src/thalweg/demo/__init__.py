"""One file per figure or table, and the report they are shown in."""
