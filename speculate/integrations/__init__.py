"""The call signatures of other libraries, implemented with this package's decoder."""
