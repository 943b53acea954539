"""Hugging Face generate with a growing cache: python generate.py dynamic|static|compiled.

dynamic: the cache is copied into a larger one at every token; static: allocated once; compiled: static, and the decoding
step compiled as transformers does it by itself. Sampling with a fixed seed, prompts of varying length.
"""

import sys

import torch
from steps import Steps
from texts import llama

steps = Steps()
kind = sys.argv[1]
vocabulary = steps.size(500, 16000)
dtype = torch.bfloat16 if steps.cuda else torch.float32
model = llama(steps.size(64, 1024), steps.size(2, 8), vocabulary).to(steps.device, dtype).eval()
more = {} if kind == "dynamic" else {"cache_implementation": "static"}
if kind == "static":
    more["disable_compile"] = True
said = []
for number in steps:
    length = steps.size(8, 64) + 5 * (number % 3)
    draw = torch.Generator().manual_seed(number)
    prompt = torch.randint(5, vocabulary, (steps.size(2, 8), length), generator=draw).to(steps.device)
    tokens = steps.size(16, 64)
    torch.manual_seed(number)
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, min_new_tokens=tokens,
                         do_sample=True, top_k=20, **more)
    said.append(out)
    steps.end(float(out.float().mean()))
steps.finish(*said)
