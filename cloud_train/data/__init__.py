"""Photos of many people: one table, three sources, and the ways to hand photos to clients."""
