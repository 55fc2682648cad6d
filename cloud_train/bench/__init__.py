"""Networks for the benchmark suite, and measurements that need torch."""
