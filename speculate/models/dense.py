"""The path under which other packages name `DenseAdapter`; the class is in `adapter`."""

from speculate.models.adapter import DenseAdapter as DenseAdapter
