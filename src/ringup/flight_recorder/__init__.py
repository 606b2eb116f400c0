"""PyTorch's flight recorder: its dumps read (`dump`), those of all ranks compared (`compare`)."""
