"""Who owns which slot: the radix tree, the free list, and the rows of running requests."""
