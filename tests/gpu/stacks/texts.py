"""Random texts and a small Llama or BERT, made from their configurations: nothing is downloaded."""

import random

import torch


class Texts(torch.utils.data.Dataset):
    """Token sequences, all of one length or each of its own."""

    def __init__(self, count: int, length: int, vocabulary: int, seed: int = 0) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(5, vocabulary, (count, length), generator=draw)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, at: int) -> dict:
        return {"input_ids": self.tokens[at], "labels": self.tokens[at]}


def collate_cut(rows: list[dict]) -> dict:
    """A batch cut to a random length: sizes change from step to step, as with padded texts."""
    length = len(rows[0]["input_ids"])
    length -= random.Random(int(rows[0]["input_ids"].sum())).randrange(length // 2)
    return {key: torch.stack([row[key][:length] for row in rows]) for key in rows[0]}


def llama(width: int, layers: int, vocabulary: int, positions: int = 2048):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=max(2, width // 64), num_key_value_heads=max(1, width // 128), max_position_embeddings=positions,
        bos_token_id=1, eos_token_id=2, pad_token_id=0))


def bert(width: int, layers: int, vocabulary: int):
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(1)
    return BertForMaskedLM(BertConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=max(2, width // 64), max_position_embeddings=2048))
