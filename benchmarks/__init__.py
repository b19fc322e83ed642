"""Measurements: what speculation costs and gains. Not part of the wheel."""
