"""What the autograd graph knows of a tensor's life, and what follows from it: classes, and the size of a pool."""
