"""What every test needs: one thread, so that tests in parallel do not fight over the cores."""

import torch

torch.set_num_threads(1)
