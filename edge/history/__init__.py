"""Feature history: one SQLite file per person, its eviction, and its recovery from damage."""

from refocus.edge.history.feature_history import FeatureHistory, RetentionPolicy
from refocus.edge.history.rows import append as append_row

__all__ = ["FeatureHistory", "RetentionPolicy", "append_row"]
