"""New photos in, a gated and signed release out: `refocus pipeline`."""
