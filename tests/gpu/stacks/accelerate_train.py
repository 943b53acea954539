"""Accelerate: gradient accumulation, mixed precision, gathered metrics. Runs alone and by `accelerate launch`."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from steps import Steps
from texts import Texts, collate_cut, llama
from torch.utils.data import DataLoader

steps = Steps()
accelerator = Accelerator(mixed_precision="bf16" if steps.cuda else "no", gradient_accumulation_steps=2, cpu=not steps.cuda)
set_seed(5)
vocabulary, batch = steps.size(500, 16000), steps.size(4, 8)
model = llama(steps.size(64, 1024), steps.size(2, 8), vocabulary)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = DataLoader(Texts(2 * batch * steps.count * steps.ranks, steps.size(48, 512), vocabulary), batch, collate_fn=collate_cut)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
batches = iter(data)
for _ in steps:
    for _ in range(2):
        with accelerator.accumulate(model):
            loss = model(**next(batches)).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    steps.end(accelerator.gather(loss.detach()).mean())
steps.finish(*model.parameters(), processes=accelerator.num_processes)
accelerator.end_training()
