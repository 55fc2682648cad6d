"""Methods that adapt to a stream of one person's photos at test time, without labels and without training."""

__all__ = ["lame", "method", "prototypes", "shares", "stata", "t3a", "trade_off"]
