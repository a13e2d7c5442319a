"""How good an encoder is: protocols by name, and the measurements behind them."""
