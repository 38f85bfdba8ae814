"""The one sampling chain: from logits to a token, per row and independent of the other rows."""
