"""Lightning: Trainer.fit with a validation loop in between, a convolutional network."""

import torch
from convnet import convnet
from steps import Steps
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

try:
    import lightning
except ImportError:
    import pytorch_lightning as lightning

steps = Steps()


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = convnet(steps.size(8, 128))

    def training_step(self, batch, index):
        images, labels = batch
        return cross_entropy(self.net(images), labels)

    def validation_step(self, batch, index):
        images, labels = batch
        self.log("accuracy", (self.net(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Watch(lightning.Callback):
    def on_train_batch_start(self, *_):
        steps.begin()

    def on_train_batch_end(self, trainer, module, outputs, *_):
        steps.end(outputs["loss"])


def images(count, side):
    draw = torch.Generator().manual_seed(2)
    return TensorDataset(torch.randn(count, 3, side, side, generator=draw), torch.randint(0, 10, (count,), generator=draw))


side, batch = steps.size(16, 64), steps.size(8, 64)
model = Classifier()
trainer = lightning.Trainer(
    max_steps=steps.count, accelerator="gpu" if steps.cuda else "cpu", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, callbacks=[Watch()], num_sanity_val_steps=1,
    limit_val_batches=0 if steps.timed else 1.0, val_check_interval=3, precision="bf16-mixed" if steps.cuda else "32-true")
trainer.fit(model, DataLoader(images(batch * steps.count, side), batch), DataLoader(images(4 * batch, side + 8), 2 * batch))
steps.finish(*model.parameters())
