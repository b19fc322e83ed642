"""Stable path of `DenseAdapter`, for entry points of other packages; the class is in `adapter`."""

from speculate.models.adapter import DenseAdapter as DenseAdapter
