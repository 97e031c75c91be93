"""One checkpoint: saved, opened, edited, loaded into arrays, verified and compared."""
