"""A small Lightning fit; ``callback`` on the command line adds ours with the bundle to write."""

import sys
import warnings

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, number):
        return self.layer(batch[0]).pow(2).mean()

    def validation_step(self, batch, number):
        self.layer(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    callbacks = []
    if "callback" in sys.argv:
        from tracelens.integrations.lightning import TracelensCallback

        callbacks.append(TracelensCallback(out=sys.argv[-1]))
    trainer = pl.Trainer(
        max_epochs=2,
        accumulate_grad_batches=2,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(
        Model(),
        DataLoader(TensorDataset(torch.randn(120, 4)), batch_size=2),
        DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=2),
    )
    print("steps", trainer.global_step)
