"""Lightning joins the group and chooses the device; rank 0 alone writes."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader


class Model(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 2)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = self.layer(batch).sum()
        self.log("loss", loss, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        if self.trainer.is_global_zero:
            print("epoch done")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    trainer = L.Trainer(max_epochs=1, devices="auto", num_nodes=2, strategy="ddp")
    trainer.fit(Model(), DataLoader(torch.randn(64, 32), num_workers=2))
    trainer.save_checkpoint("last.ckpt")
