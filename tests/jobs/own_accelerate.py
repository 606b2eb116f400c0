"""Accelerate as its quick tour starts it: nothing says how many ranks there are or on what they train."""

import torch
from accelerate import Accelerator
from ending import formed

accelerator = Accelerator()
model = torch.nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
accelerator.backward(model(torch.full((1, 4), float(accelerator.process_index))).sum())
optimizer.step()
total = accelerator.reduce(torch.tensor(float(accelerator.process_index + 1)), reduction="sum")
formed(accelerator.num_processes, total.item())
accelerator.end_training()
