"""`speculate bench`: what this machine, this model and these proposers make of speculation."""
