"""`speculate verify`: the promise, checked on the user's own machine."""
