"""Accelerate prepares; all gather and wait, the main process alone prints and saves."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader


def main() -> None:
    accelerator = Accelerator()
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(torch.randn(64, 8), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(2):
        for batch in loader:
            loss = model(batch.to(accelerator.device)).sum()
            accelerator.backward(loss)
            optimizer.step()
        losses = accelerator.gather_for_metrics(loss.unsqueeze(0))
        if accelerator.is_main_process:
            print(epoch, losses.mean().item())
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main()
