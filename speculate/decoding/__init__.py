"""The loop. Start with `generation`, whose `tokens` is the round in order.

`decoder` is the public entry, `target` feeds the model, `proposer_pool` keeps all proposers at the
same sequence, `cache_loan` holds the caller's list of caches, and `window` rewinds caches for loops
of your own.
"""
