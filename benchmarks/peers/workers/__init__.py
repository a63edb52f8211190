"""One module per engine. Each runs in that engine's own environment, where nothing of Outrider is installed."""
