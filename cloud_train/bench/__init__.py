"""Networks for the benchmark suite, and measurements that need torch."""

__all__ = ["compatibility", "overhead", "peers", "plain_bundles", "suite"]
