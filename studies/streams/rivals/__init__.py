"""Methods that adapt at test time, without labels and without training: class shares and their rivals."""

__all__ = ["lame", "method", "prototypes", "shares", "stata", "t3a", "trade_off"]
