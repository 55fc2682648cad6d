"""What :class:`edge.history.FeatureHistory` is made of: a profile's file, its tables, eviction, recovery and export."""
