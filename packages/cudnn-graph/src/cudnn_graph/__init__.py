"""The graph API; its public names are reached as `cudnn.<name>`."""
