"""The commands `refocus bench` and `refocus accuracy`."""
