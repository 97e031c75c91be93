"""Values of records, and names of other loaders and data sets."""
