"""The paper's experiments: what is trained, at which size, and what comes of it next to the paper's numbers."""
