"""Parts of :class:`refocus.edge.history.FeatureHistory`: a profile's file, tables, eviction, recovery and export."""
