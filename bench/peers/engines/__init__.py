"""The engines that Interbed is compared with: one file each, all with the same few methods (see `base.py`)."""
