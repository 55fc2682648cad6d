"""ICIIA: the block, its training, the gate, labelled baselines, and the heads in the form that devices run."""

__all__ = ["block", "delivery", "gate", "plain_classifier", "programs", "streaming", "train", "train_gate", "windowed"]
