"""One file a claim: ``python -m benchmarks.NAME`` measures it, prints a table and one line of JSON."""
