"""Hugging Face's Trainer: python hf_trainer.py llama|bert, bf16 where there is a GPU, batches of varying length."""

import sys
import tempfile

from steps import Steps
from texts import Texts, bert, collate_cut, llama
from transformers import Trainer, TrainerCallback, TrainingArguments

steps = Steps()
kind = sys.argv[1]
width, layers, vocabulary = steps.size(64, 1024), steps.size(2, 8), steps.size(500, 16000)
model = llama(width, layers, vocabulary) if kind == "llama" else bert(width, layers, vocabulary)
batch = steps.size(4, 8)


class Watch(TrainerCallback):
    def on_step_begin(self, *_, **__):
        steps.begin()

    def on_step_end(self, *_, **__):
        steps.end()

    def on_log(self, args, state, control, logs=None, **_):
        if logs and "loss" in logs:
            steps.loss(logs["loss"])


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, max_steps=steps.count, per_device_train_batch_size=batch, gradient_accumulation_steps=2,
        learning_rate=1e-3, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, seed=3,
        bf16=steps.cuda, use_cpu=not steps.cuda, gradient_checkpointing=kind == "llama", remove_unused_columns=False)
    data = Texts(2 * batch * steps.count, steps.size(48, 768), vocabulary)
    Trainer(model=model, args=arguments, train_dataset=data, data_collator=collate_cut, callbacks=[Watch()]).train()
steps.finish(*model.parameters())
