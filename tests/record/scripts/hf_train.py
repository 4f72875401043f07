"""A small Hugging Face Trainer; ``callback`` on the command line adds ours with the bundle to write."""

import sys

import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        out = self.layer(x)
        return {"loss": (out - labels).pow(2).mean(), "logits": out}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        return {"x": torch.full((4,), float(index % 5)), "labels": torch.ones(1)}


if __name__ == "__main__":
    callbacks = []
    if "callback" in sys.argv:
        from tracelens.integrations.transformers import TracelensCallback

        callbacks.append(TracelensCallback(out=sys.argv[-1]))
    arguments = TrainingArguments(
        output_dir=sys.argv[1],
        num_train_epochs=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=Model(), args=arguments, train_dataset=Data(), callbacks=callbacks)
    trainer.train()
    print("steps", trainer.state.global_step)
