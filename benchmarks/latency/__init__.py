"""``refocus bench``: how long what users run takes, whether the figure can be trusted, and what really ran."""
