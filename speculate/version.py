"""The version, told here so that it is known where no package metadata is installed."""

VERSION = "0.1.0"
