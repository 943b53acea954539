"""What this machine has, whether dymem can serve PyTorch on it, and the command that mends what is missing.

One check is one function from nothing to a Finding (or several); none raises, none stops the others, and none needs torch,
a GPU or a compiler. `report` says it; `dymem doctor` runs them all.
"""
