"""From a folder, a hub name or a model in memory to something that can speculate."""
