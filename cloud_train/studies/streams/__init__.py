"""Methods that personalise on streams of pseudo-people: the protocol, trained heads in it, and trade-offs."""
