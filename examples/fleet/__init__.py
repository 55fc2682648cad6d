"""A simulated fleet: device processes on photos of drawn letters, through two releases."""
