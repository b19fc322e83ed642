"""One window over many caches, the round, and the decoder that runs rounds."""
