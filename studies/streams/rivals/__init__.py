"""Test-time adaptation without labels and training.

Contains class shares and their rivals.
"""

__all__ = ["em_shares", "lame", "method", "prototypes", "shares", "stata", "t3a", "trade_off"]
