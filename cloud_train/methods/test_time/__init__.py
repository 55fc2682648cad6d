"""Methods that adapt to a stream of one person's photos at test time, without labels and without training."""
