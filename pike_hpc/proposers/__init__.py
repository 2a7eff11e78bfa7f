"""Where candidates come from: rules that rewrite source, and agents that ask a model."""
