"""Other libraries' call signatures, on this package's decoder."""
