"""Which layers to leave out of INT8: what each loses and costs, and the plans worth having."""
