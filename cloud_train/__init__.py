"""The cloud side: data, backbones, the methods, training, evaluation and the demo."""
