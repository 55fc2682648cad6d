"""Photos of many people: folders, arrays, Omniglot, drawn letters; partitions into pseudo-clients and windows."""
