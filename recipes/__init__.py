"""Recipes that rebuild what the package bundles."""
