"""Everything that is measured on a GPU: `make gpu`, and without one `make gpu DRY=1`."""
