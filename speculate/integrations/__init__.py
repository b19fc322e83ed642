"""This package's decoder behind the call signatures of other libraries."""
