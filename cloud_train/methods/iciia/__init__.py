"""ICIIA: the block, its training, the gate, labelled baselines, and the heads in the form that devices run."""
