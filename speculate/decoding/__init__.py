"""The loop. Start with `run` (one generation) and `target` (the steps of a round).

`decoder` is the public entry, `window` the rewind for loops of your own, `proposers` keeps all
proposers at the same sequence, `loan` and `session` hold the caller's list of caches.
"""
