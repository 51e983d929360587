"""polyfed: federated learning between parties with different data and different models."""

__version__ = "0.1.0"
