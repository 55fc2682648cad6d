"""What a device says about itself while it is measured, and how one that is not this machine is reached."""
