"""PEFT: LoRA on a small Llama, merged and used at the end."""

import torch
from peft import LoraConfig, get_peft_model
from steps import Steps
from texts import Texts, collate_cut, llama
from torch.utils.data import DataLoader

steps = Steps()
vocabulary, batch = steps.size(500, 16000), steps.size(4, 8)
model = get_peft_model(llama(steps.size(64, 1536), steps.size(2, 8), vocabulary),
                       LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "down_proj"]))
model.to(steps.device)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
batches = iter(DataLoader(Texts(batch * steps.count, steps.size(48, 512), vocabulary), batch, collate_fn=collate_cut))
for _ in steps:
    with torch.autocast(steps.device.type, torch.bfloat16, enabled=steps.cuda):
        loss = model(**{key: value.to(steps.device) for key, value in next(batches).items()}).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    steps.end(loss)
with torch.no_grad():
    logits = model.merge_and_unload()(torch.arange(5, 25, device=steps.device)[None]).logits
steps.finish(logits)
