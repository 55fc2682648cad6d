"""Parts of :class:`refocus.edge.history.feature_history.FeatureHistory`: a profile's file, tables, eviction, recovery
and export.
"""
