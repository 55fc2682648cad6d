"""From a trained program to a bundle that a device can trust."""
