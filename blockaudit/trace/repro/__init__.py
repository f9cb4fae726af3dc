"""`--repro`: the first divergence, cut out to be handed over."""
