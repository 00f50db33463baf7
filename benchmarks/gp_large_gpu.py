"""The fit of gp_large with 20,000 rows, on a GPU."""

from benchmarks.gp_large import main

if __name__ == "__main__":
    main(20_000)
